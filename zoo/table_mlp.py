"""A small net for tables: the MLP of Gorishniy, Rubachev, Khrulkov and Babenko, "Revisiting Deep Learning Models for
Tabular Data" (2021), section 3.1: blocks of a full connection, relu and dropout, and a last full connection.

The paper chooses the number and the width of blocks, dropout and rate for each table, and trains with AdamW; here there
are two blocks of 64 units with dropout 0.1, trained by this recipe. With the 10 columns and 4 classes of the generated
table there are 5,124 parameters. Columns are normalised by the training rows' mean and standard deviation.

After 20 epochs of the generated table 92.03 % of the 2,000 test rows are right (mean of seeds 0, 1, 2: 91.85, 92.30 and
91.95), in 8 s on 2 CPU cores with other work running. depth=0 is the linear model, multinomial logistic regression,
which comes to 42.62 % (42.45, 42.80 and 42.60).
"""

from __future__ import annotations

from minidl import nn

from .recipe import Model, Recipe, start


def layers(in_features: int = 10, classes: int = 4, hidden: int = 64, depth: int = 2,
           dropout: float = 0.1) -> nn.Sequential:
    if not isinstance(depth, int) or depth < 0:
        raise ValueError(f"zoo: depth of model 'table-mlp' is {depth!r} but must be an int of at least 0; 0 is the "
                         "linear model")
    found: dict[str, nn.Module] = {}
    for i in range(1, depth + 1):
        found |= {f"hidden{i}": nn.Linear(in_features if i == 1 else hidden, hidden), f"act{i}": nn.ReLU(),
                  f"dropout{i}": nn.Dropout(dropout)}
    return start(nn.Sequential(**found, output=nn.Linear(hidden if depth else in_features, classes)), gain=2**0.5)


MODEL = Model("table-mlp", "two hidden layers of 64 units for tables (Gorishniy et al. 2021), 5,124 parameters", layers,
              Recipe(data="synthetic-table", epochs=20, batch_size=128, lr=0.05, momentum=0.9, weight_decay=1e-4,
                     lr_schedule="cosine"))
