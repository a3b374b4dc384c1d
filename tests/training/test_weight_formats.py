"""Weights in .npz and .safetensors: what HDF5 holds, they hold; test_hostile_formats.py has what is refused."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_weights import PREPROCESSING, Counted, Net, equal, net, same, tied

import minidl
from minidl import nn, zoo
from minidl.core.host import install
from minidl.nn.weights import WeightsError, load, read_metadata, save

HAS_SAFETENSORS = pytest.mark.skipif(not importlib.util.find_spec("safetensors"),
                                     reason="the package safetensors is not installed")
ENDINGS = [".npz", pytest.param(".safetensors", marks=HAS_SAFETENSORS)]


@pytest.fixture(params=ENDINGS)
def ending(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("array", [np.float32(3.5).reshape(()), np.zeros((0, 3), "f4"), np.arange(6.0)[::2],
                                   np.arange(6.0).reshape(2, 3).T, np.arange(3, dtype=">f8"),
                                   np.array([True, False]), np.array(2**62), np.array([2**31 - 1], ">i4"),
                                   np.array([-2**15], "i2"), np.array([-128], "i1"), np.array([255], "u1"),
                                   np.array([np.nan, -0.0, np.inf, 5e-324])],
                         ids=["scalar", "size 0", "strided", "transposed", "big-endian", "bool", "int64", "int32",
                              "int16", "int8", "uint8", "special"])
@pytest.mark.filterwarnings("ignore:.*NaN or infinite")
def test_every_kind_of_array_comes_back(tmp_path: Path, ending: str, array: np.ndarray) -> None:
    model = Net(a=np.zeros_like(array))
    save(Net(a=array), tmp_path / f"w{ending}")
    load(model, tmp_path / f"w{ending}")
    assert model.parameters["a"].tobytes() == array.tobytes()


def test_metadata_ties_and_buffers_come_back(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"w{ending.upper()}"
    save(net(), path, preprocessing=PREPROCESSING, classes=["T-shirt", "\u6f22"])
    assert read_metadata(path) == {
        "format": "minidl", "format_version": 1, "minidl_version": minidl.__version__, "model": "tiny",
        "model_args": Net.model_args, "preprocessing": PREPROCESSING, "classes": ["T-shirt", "\u6f22"],
        "columns": None, "input": None, "code": None}
    tiny = net(2)
    load(tiny, path)
    assert same(tiny, net())
    save(tied(1), path)
    for tie in (True, False):
        model = tied(2, tie)
        load(model, path)
        assert equal(tied(1), model)
    one, other = Counted(1), Counted(2)
    save(one, path)
    load(other, path)
    assert equal(one, other)


@pytest.mark.parametrize("preprocessing", [
    {"mean": [np.float32(0.5), np.float64(0.25)], "std": [0.125, np.int64(1)], "padding": np.int64(2)},
    {"mean": np.array([0.5, 0.25]), "std": np.array([0.125, 1], "f4"), "padding": 2}])
def test_numpys_numbers_are_written_as_numbers(tmp_path: Path, ending: str, preprocessing: Any) -> None:
    model = zoo.build("perceptron", in_channels=np.int64(2), classes=np.uint8(200))
    save(model, tmp_path / f"w{ending}", preprocessing=preprocessing, classes=np.array([f"c{i}" for i in range(200)]))
    found = read_metadata(tmp_path / f"w{ending}")
    assert found["model_args"] == {"in_channels": 2, "classes": 200}
    assert found["preprocessing"] == PREPROCESSING
    assert found["classes"][199] == "c199"
    assert equal(model, load(tmp_path / f"w{ending}"))


def test_the_zoos_models_are_built(tmp_path: Path, ending: str) -> None:
    model = zoo.build("lenet5", activation="relu")
    save(model, tmp_path / f"w{ending}")
    assert equal(model, load(tmp_path / f"w{ending}"))


def test_equal_weights_give_equal_bytes(tmp_path: Path, ending: str) -> None:
    for name in "ab":
        save(net(), tmp_path / f"{name}{ending}", classes=["x"], preprocessing=PREPROCESSING)
    assert (tmp_path / f"a{ending}").read_bytes() == (tmp_path / f"b{ending}").read_bytes()


def test_other_programs_read_the_files(tmp_path: Path, ending: str) -> None:
    save(net(), tmp_path / f"w{ending}")
    if ending == ".npz":
        found: Any = np.load(tmp_path / "w.npz", allow_pickle=False)
        assert json.loads(found["minidl.json"])["model"] == "tiny"
    else:
        from safetensors.numpy import load_file

        found = load_file(tmp_path / "w.safetensors")
    for name, array in net().parameters.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)


@pytest.mark.slow
def test_every_truncation_and_flipped_byte_of_values_is_noticed(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"w{ending}"
    save(net(1), path)
    good = path.read_bytes()
    for length in range(0, len(good), 29):
        path.write_bytes(good[:length])
        with pytest.raises(WeightsError, match=f"^load: '{path}' "):
            load(net(), path)
    for place in range(0, len(good), 3):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1 << place % 8]) + good[place + 1:])
        model = net()
        try:
            load(model, path)
        except WeightsError:
            assert same(model, net())
        else:
            assert same(model, net(1)), place  # a bit that says nothing: a time, blanks


def test_mismatches_are_listed(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"w{ending}"
    save(Net(**{"a.b": np.ones((2, 3), "f4"), "c": np.ones(2), "x": np.ones(1, "f4")}), path)
    model = Net(**{"a.b": np.zeros((3, 2), "f4"), "c": np.zeros(2, "f4"), "y": np.zeros(1, "f4")})
    message = ("was saved from 'tiny' and does not fit 'tiny': a.b is (3,2) float32 in the model but (2,3) float32 in "
               "the file; c is (2,) float32 in the model but (2,) float64 in the file; y is (1,) float32 in the model "
               "but missing in the file; x is missing in the model but (1,) float32 in the file; build the model")
    with pytest.raises(WeightsError, match=re.escape(message)):
        load(model, path)
    assert model.loads == 0
    save(Net(**{f"layer{i}.weight": np.ones(2, "f4") for i in range(300)}), path)
    with pytest.raises(WeightsError, match="in the file; more; build the model that it was saved from"):
        load(Net(a=np.ones(2, "f4")), path)


def test_a_format_is_told_by_the_paths_ending(tmp_path: Path) -> None:
    save(net(), tmp_path / "w.h5")
    for name, message in (("w.npz", r"is not a .npz file (it starts with b'\\x89HDF' instead of b'PK\\x03\\x04')"),
                          ("w.safetensors", "is not a .safetensors file (its header would have 727905341903489161 of")):
        if name == "w.safetensors":
            pytest.importorskip("safetensors", reason="the package safetensors is not installed")
        (tmp_path / name).write_bytes((tmp_path / "w.h5").read_bytes())
        with pytest.raises(WeightsError, match=re.escape(message.replace("\\\\", "\\"))):
            load(net(), tmp_path / name)
    save(net(), tmp_path / "w.npz")
    (tmp_path / "w.h5").write_bytes((tmp_path / "w.npz").read_bytes())
    with pytest.raises(WeightsError, match="is not an HDF5 file"):
        load(net(), tmp_path / "w.h5")


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    (tmp_path / "w.safetensors").write_bytes(bytes(99))
    for act in (save, load):
        message = (f"{act.__name__}: a .safetensors file needs the package safetensors; run "
                   f"{install('safetensors')}")
        with pytest.raises(ImportError, match=f"^{re.escape(message)}$"):
            act(net(), tmp_path / "w.safetensors")
    assert len((tmp_path / "w.safetensors").read_bytes()) == 99


# ---------------------------------------------------------------- .safetensors that others wrote
def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def conv_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 2)).eval()


def tied_net() -> nn.Module:
    model = nn.Sequential(table=nn.Embedding(4, 3), output=nn.Linear(3, 4, bias=False))
    model.output.weight = model.table.weight
    return model


COUNTS = {"1.num_batches_tracked": np.array(7)}
CONV = {"0.weight": random(3, 2, 3, 3), "0.bias": random(3), "1.weight": random(3) + 2, "1.bias": random(3) - 1,
        "1.running_mean": random(3) / 2, "1.running_var": abs(random(3)) + 1, "4.weight": random(2, 12),
        "4.bias": random(2)}
OTHERS: dict[str, tuple[Any, dict[str, np.ndarray], dict[str, str] | None]] = {  # model, arrays, metadata
    "no metadata": (lambda: nn.Linear(3, 2), {"weight": random(2, 3), "bias": random(2)}, None),
    "of PyTorch": (lambda: nn.Linear(3, 2), {"weight": random(2, 3), "bias": random(2)}, {"format": "pt"}),
    "much metadata": (lambda: nn.Linear(3, 2, bias=False), {"weight": random(2, 3)}, {
        "format": "pt", "author": "\x1b[2J", **{f"k{i}": "v" * 99 for i in range(300)}}),
    "counts of batches": (conv_net, CONV | COUNTS, {"format": "pt"}),
    "thirty counts of batches": (lambda: nn.Sequential(*(nn.BatchNorm1d(1) for _ in range(30))), {
        f"{i}.{name}": np.full((), 3) if "num" in name else random(1) ** 2 for i in range(30)
        for name in ("num_batches_tracked", "weight", "bias", "running_mean", "running_var")}, {"format": "pt"}),
    "one of two names": (tied_net, {"table.weight": random(4, 3)}, {"format": "pt"}),
    "the other of two names": (tied_net, {"output.weight": random(4, 3)}, {"output.weight": "table.weight"}),
    "both names": (tied_net, {"table.weight": random(4, 3), "output.weight": random(4, 3)}, None),
    "float64, and a scalar": (lambda: Net(a=np.zeros((), "f8"), b=np.zeros(2, "i8")), {
        "a": np.array(1.5), "b": np.array([1, -2])}, {"format": "np"}),
}


@HAS_SAFETENSORS
@pytest.mark.parametrize("name", OTHERS)
def test_safetensors_of_other_programs_are_read(tmp_path: Path, name: str) -> None:
    from safetensors.numpy import save_file

    build, arrays, metadata = OTHERS[name]
    save_file(arrays, tmp_path / "w.safetensors", metadata)
    model = build()
    assert load(model, tmp_path / "w.safetensors") is model
    found = model.state_dict()
    assert all(np.array_equal(found[key], array) for key, array in arrays.items() if key in found)
    with pytest.raises(WeightsError, match=r"^load: '.*w\.safetensors' was written by another program and does not say "
                                           r"which model it is of; build the model and call minidl\.load\(model, path"):
        load(tmp_path / "w.safetensors")
    save(model, tmp_path / "w.safetensors")    # from here on it is ours, with checksums
    assert read_metadata(tmp_path / "w.safetensors")["format"] == "minidl"


@HAS_SAFETENSORS
def test_a_net_of_another_program_gives_the_values_that_its_formula_gives(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file(CONV | COUNTS, tmp_path / "w.safetensors", {"format": "pt"})
    x = random(5, 2, 4, 4)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    y = np.einsum("ncijpq,mcpq->nmij", windows, CONV["0.weight"]) + CONV["0.bias"][:, None, None]
    mean, var, weight, bias = (CONV[f"1.{key}"][:, None, None] for key in ("running_mean", "running_var", "weight",
                                                                           "bias"))
    y = np.maximum((y - mean) / np.sqrt(var + 1e-5) * weight + bias, 0).reshape(5, -1)
    mine = load(conv_net(), tmp_path / "w.safetensors")(minidl.Tensor(x)).numpy()
    assert abs(mine - (y @ CONV["4.weight"].T + CONV["4.bias"])).max() < 1e-4


@HAS_SAFETENSORS
@pytest.mark.parametrize(("change", "message"), [
    ({"4.weight": random(2, 12).astype("f2")}, r"4.weight is (2,12) float32 in the model but (2,12) of type F16 in th"),
    ({"4.weight": random(12, 2)}, "4.weight is (2,12) float32 in the model but (12,2) float32 in the file"),
    ({"5.num_batches_tracked": np.array(1)}, "5.num_batches_tracked is missing in the model but () int64 in the file"),
    ({"more": random(1)}, "more is missing in the model but (1,) float32 in the file"),
    ({f"x{i}": random(1) for i in range(30)}, "in the file; more; build the model"),
    ({"\x1b[2J": random(1)}, r"'\x1b[2J' is missing in the model but (1,) float32 in the file"),
])
def test_what_does_not_fit_of_another_program_is_listed(tmp_path: Path, change: Any, message: str) -> None:
    from safetensors.numpy import save_file

    save_file(CONV | change, tmp_path / "w.safetensors")
    model = conv_net()
    before = model.state_dict()
    with pytest.raises(WeightsError, match=re.escape("was saved from 'another program' and does not fit 'Sequential': ")
                       + f".*{re.escape(message)}"):
        load(model, tmp_path / "w.safetensors")
    assert all(np.array_equal(array, before[name]) for name, array in model.state_dict().items())
