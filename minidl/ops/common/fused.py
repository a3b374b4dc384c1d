"""What is fused: a few calls, and the one call that does the same in fewer passes over memory.

A rule is its pattern and the fused call, see patterns.py; ACT is each of the activations that are named last.
Values that the fused call gives under their names stay visible, so that others may read them, as an activation's
gradient reads what the activation computed. All other values of the pattern are never made: the rule applies only if
nothing else reads or keeps them.
"""

from collections.abc import Collection

from .patterns import Rule, each_act, rule
from .primitives import ACTIVATIONS, ALL, OF_X

NONE = ("",)                               # a rule without ACT

# The order counts: a rule whose pattern is part of another's comes after it. The input of an activation of OF_X need
# not be made either if no gradient reads it.
TABLE: tuple[tuple[str, str, Collection[str]], ...] = (
    ("""z = conv2d(x, w, b, g)
        y = ACT(z)
        p = avg_pool2d(y, pooling)""", "y, p = conv2d_act_pool(x, w, b, g, ACT, pooling)", ACTIVATIONS),
    ("""z = conv2d(x, w, b, g)
        y = ACT(z)""", "y = conv2d_act(x, w, b, g, ACT)", ACTIVATIONS),
    ("""v = conv2d(x, w, b, g)
        z = normalize_by(v, mean, var, weight, bias, eps, sets)
        y = ACT(z)""", "y = conv2d_norm_act(x, w, b, g, mean, var, weight, bias, eps, sets, ACT)", ACTIVATIONS),
    ("""v = conv2d(x, w, b, g)
        z = normalize_by(v, mean, var, weight, bias, eps, sets)""",
     "z = conv2d_norm(x, w, b, g, mean, var, weight, bias, eps, sets)", NONE),
    *((f"""z, mean, rstd = batch_norm(x, w, b, running_mean, running_var, momentum, eps, g)
           v = add({terms})
           y = ACT(v)""",
       "y, mean, rstd = batch_norm_act(x, other, w, b, running_mean, running_var, momentum, eps, g, ACT)", ACTIVATIONS)
      for terms in ("z, other", "other, z")),
    ("""z, mean, rstd = batch_norm(x, w, b, running_mean, running_var, momentum, eps, g)
        y = ACT(z)""",
     "y, mean, rstd = batch_norm_act(x, None, w, b, running_mean, running_var, momentum, eps, g, ACT)", ACTIVATIONS),
    ("""v = add(gy, other)
        gz = ACT_grad_x(v, y)
        gx, gw, gb = normalize_grad(gz, x, w, mean, rstd, g)""",
     "gz, gx, gw, gb = normalize_act_grad(gy, other, y, x, w, mean, rstd, g, ACT)", ALL),
    ("""gz = ACT_grad_x(gy, y)
        gx, gw, gb = normalize_grad(gz, x, w, mean, rstd, g)""",
     "gz, gx, gw, gb = normalize_act_grad(gy, None, y, x, w, mean, rstd, g, ACT)", ALL),
    ("""z = linear(x, w, b)
        y = ACT(z)""", "y = linear_act(x, w, b, ACT)", ALL),
    ("""z = linear(x, w, b)
        y = ACT(z)""", "z, y = linear_and_act(x, w, b, ACT)", OF_X),
    ("""gx = linear_grad_x(gy, w)
        gz = ACT_grad_x(gx, y)""", "gz = linear_grad_act(gy, w, y, ACT)", ALL),
    ("""z = add(x, other)
        y = ACT(z)""", "y = add_act(x, other, ACT)", ALL),
    ("""v = add(gy, other)
        gz = ACT_grad_x(v, y)""", "gz = add_grad_act(gy, other, y, ACT)", ALL),
    ("""gy = avg_pool2d_grad_x(gp, pooling)
        gz = ACT_grad_x(gy, y)
        dw = conv2d_grad_w(gz, x, g)
        db = conv2d_grad_b(gz)""", "dw, db = conv2d_act_pool_grad_wb(gp, y, x, g, ACT, pooling)", ACTIVATIONS),
    ("""dx = avg_pool2d_grad_x(gy, g)
        gx = ACT_grad_x(dx, y)""", "gx = avg_pool2d_grad_act(gy, y, g, ACT)", ACTIVATIONS),
    ("""loss, log_p = cross_entropy(x, labels, reduction, smoothing)
        one = ones_like(loss)
        gx = cross_entropy_grad_x(one, log_p, labels, reduction, smoothing)""",
     "loss, gx = cross_entropy_with_grad(x, labels, reduction, smoothing)", NONE),
)

RULES: tuple[Rule, ...] = tuple(each for row in TABLE for each in each_act(*row))
# The rules of each fused primitive, with ACT as one of its arguments
FUSED: dict[str, list[Rule]] = {}
for _pattern, _fused, _ in TABLE:
    _rule = rule(_pattern, _fused)
    FUSED.setdefault(_rule.fused.primitive, []).append(_rule)
