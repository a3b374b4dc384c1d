"""Weights files: what is written, what is refused, and that nothing is ever half done."""

import base64
import errno
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import warnings
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest
from tiers import tiered

import minidl
from minidl import Tensor, weights, zoo
from minidl.data import DataLoader, Dataset, Table
from minidl.nn.weights import WEIGHTS, WeightsError, files, hdf5, load, read_metadata, save
from minidl.nn.weights.common import DTYPES, Meter, digest, listed
from minidl.training import RunFolder, SaveBest


class Net:
    """The least that save and load ask of a model."""

    model_name = "tiny"
    model_args = {"padding": [4, 3], "activation": "tanh"}

    def __init__(self, **parameters):
        self.parameters = parameters
        self.loads = 0

    def state_dict(self):
        return {name: array.copy() for name, array in self.parameters.items()}

    def load_state_dict(self, state):
        self.loads += 1
        for name, array in self.parameters.items():
            array[...] = state[name]


DATA = np.ones(6, "f4")


def net(seed=0, dtype="float32"):
    rng = np.random.default_rng(seed)
    shapes = {"c1.weight": (6, 1, 5, 5), "c1.bias": (6,), "features.0.weight": (3, 4)}
    return Net(**{name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()})


def same(a, b):
    return all(np.array_equal(a.parameters[name], b.parameters[name]) for name in a.parameters)


@pytest.fixture
def path(tmp_path):
    """A good file, saved from net(seed=1)."""
    save(net(seed=1), tmp_path / "weights.h5")
    return tmp_path / "weights.h5"


def run(code, *arguments):
    """Run Python code in a new process that knows minidl and this file; returns its output."""
    folders = [str(Path(minidl.__file__).parents[1]), *map(str, Path(__file__).parents[:2])]
    code = f"import sys; sys.dont_write_bytecode = True; sys.path[:0] = {folders}\n{code}"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout


def assert_refused(path, message, model=None, error=WeightsError):
    """`load` raises one line that holds the message, and leaves the model alone."""
    model = model or net()
    before = model.state_dict()
    with pytest.raises(error, match=re.escape(message)) as caught:
        load(model, path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"load: '{path}' ")
    assert model.loads == 0
    assert all(np.array_equal(model.parameters[name], before[name], equal_nan=True) for name in before)


# ---------------------------------------------------------------------- what is written
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_saved_model_loads_bit_for_bit(tmp_path, dtype):
    model, other = net(1, dtype), net(2, dtype)
    model.parameters["c1.bias"][:4] = np.nan, np.inf, -np.inf, -0.0  # weights are saved as they are
    for act, model_of in ((save, model), (load, other)):
        message = f"{act.__name__}: '{tmp_path}/w.h5' holds values that are NaN or infinite: c1.bias (3 of 6)"
        with pytest.warns(RuntimeWarning, match=f"^{re.escape(message)}$") as caught:
            act(model_of, str(tmp_path / "w.h5"))
        assert [w.filename for w in caught if w.category is RuntimeWarning] == [__file__]
    assert all(a.tobytes() == b.tobytes() for a, b in
               zip(model.parameters.values(), other.parameters.values(), strict=True))
    assert other.loads == 1


@pytest.mark.parametrize("array", [np.float32(3.5).reshape(()), np.zeros((0, 3), "f4"), np.arange(6.0)[::2],
                                   np.arange(6.0).reshape(2, 3).T, np.arange(3, dtype=">f8"),
                                   np.array([True, False]), np.array(2**62), np.array([2**31 - 1], ">i4"),
                                   np.array([-2**15], "i2"), np.array([-128], "i1"), np.array([255], "u1")],
                         ids=["scalar", "size 0", "strided", "transposed", "big-endian", "bool", "int64", "int32",
                              "int16", "int8", "uint8"])
def test_every_kind_of_array_comes_back(tmp_path, array):
    model = Net(a=np.zeros_like(array))
    save(Net(a=array), tmp_path / "w.h5")
    load(model, tmp_path / "w.h5")
    assert np.array_equal(model.parameters["a"], array)
    with h5py.File(tmp_path / "w.h5", "r") as file:
        dataset = file["model/a"]
        assert dataset.dtype == array.dtype.newbyteorder("<")
        assert dataset.attrs["sha256"].decode() == hashlib.sha256(dataset[()].tobytes()).hexdigest()


def test_a_model_may_have_any_name(tmp_path):
    model = Net(a=DATA)
    for model.model_name in ("", "LeNet-5 \u6f22"):
        save(model, tmp_path / "w.h5")
        load(Net(a=DATA.copy()), tmp_path / "w.h5")
        assert read_metadata(tmp_path / "w.h5")["model"] == model.model_name


def test_modules_save_and_load(tmp_path):
    def build():
        return minidl.nn.Sequential(c1=minidl.nn.Conv2d(1, 2, 3), f=minidl.nn.Linear(4, 3))

    model, other = build(), build()
    save(model, tmp_path / "w.h5")
    load(other, tmp_path / "w.h5")
    assert all(np.array_equal(array, other.state_dict()[name]) for name, array in model.state_dict().items())
    assert read_metadata(tmp_path / "w.h5")["model"] == "Sequential"


def test_h5py_reads_the_file(path):
    model = net(seed=1)
    with h5py.File(path, "r") as file:
        assert {name: int(value) if name == "format_version" else value.decode()
                for name, value in file.attrs.items()} == {
            "format": "minidl", "format_version": 1, "minidl_version": minidl.__version__, "model": "tiny",
            "model_args": json.dumps(Net.model_args, sort_keys=True)}
        assert sorted(file) == ["model"]
        assert sorted(file["model"]) == ["c1", "features"]
        for name, array in model.parameters.items():
            dataset = file["model/" + name.replace(".", "/")]
            assert dataset.dtype == np.dtype("<f4")
            assert dataset.chunks is dataset.compression is None
            assert not dataset.id.get_create_plist().get_obj_track_times()  # a time would change the bytes
            assert np.array_equal(dataset[()], array)
            assert dataset.attrs["sha256"].decode() == hashlib.sha256(array.astype("<f4").tobytes()).hexdigest()
        text = file.attrs.get_id("model").get_type()
        assert (text.get_cset(), text.is_variable_str()) == (h5py.h5t.CSET_UTF8, False)


@pytest.mark.skipif(h5py.version.version_tuple < (3, 16), reason="h5py's create_group notes times")
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bytes_are_those_of_create_dataset(dtype):
    values = (np.random.default_rng(0).standard_normal((5, 4, 3)) * 100).astype(dtype)
    state = {"w": values, "a.b.c.w": values.T, "a.w": values[::-2], "a.b.w": np.broadcast_to(values, (2, 5, 4, 3)),
             "größe.層": values.astype(values.dtype.newbyteorder(">")), "scalar": values[0, 0, 0, ...],
             "none.0": values[:0], "none.1": values[:, :0].T, **{f"many.{i}": values[i % 5] for i in range(20)}}
    attributes = {"format": "x" * 70000, "empty": "", "größe": "層\0", "n": -2**63, **{f"a{i}": i for i in range(9)}}
    written = io.BytesIO()
    with h5py.File(written, "w", libver=("v108", "v108")) as file:
        for name, value in attributes.items():
            text = isinstance(value, str)
            file.attrs.create(name, value.encode() if text else value, dtype=h5py.string_dtype(
                length=len(value.encode()) or 1) if text else "<i8")
        for name, array in state.items():
            dataset = file.create_dataset(f"model/{name.replace('.', '/')}", data=array, track_times=False,
                                          dtype=array.dtype.newbyteorder("<"))
            dataset.attrs.create("sha256", digest(array).encode(), dtype=h5py.string_dtype(length=64))
    assert hdf5.image(WEIGHTS, state, attributes) == written.getvalue()


@pytest.mark.slow
def test_equal_weights_give_equal_bytes(path, tmp_path):
    again = tmp_path / "again.h5"
    save(net(seed=1), again)
    assert again.read_bytes() == path.read_bytes()
    run("import minidl, test_weights; minidl.save(test_weights.net(seed=1), sys.argv[1])", again)
    assert again.read_bytes() == path.read_bytes()


def test_metadata_says_how_to_build_the_model_again(path):
    assert read_metadata(path) == {"format": "minidl", "format_version": 1, "minidl_version": minidl.__version__,
                                   "model": "tiny", "model_args": {"padding": [4, 3], "activation": "tanh"},
                                   "preprocessing": None, "classes": None, "columns": None, "input": None, "code": None}


# What minidl 0.1.0 wrote before there were buffers and ties: Sequential(a=Linear(2, 1), b=Linear(1, 1, bias=False)).
OLD = zlib.decompress(base64.b85decode(
    'c-pN}&ubGw82x7R!w@4)YNhDKQuSaD?ac1Z?u;G`G)Sa}f}Rwi%<Rs#i)liWv<fQrsOZ6q7ZLHl@a#pw|3MK%@aVO8(AnKd6U9Jd'
    '`@yn1-@cjm=6&x;vvKuA`Apd=m0(c6OgY7DjZJ_4){jrC&Bk>Ll~A<`@Bw9g+x#zEpgX6gAwN80P?dRr92|pE@-ymmH$@*#)&LR;'
    'OFx@&I}TeFoS>$lGDNNIsBSOrw4tg6W*Y114nq!=i`ky^<m{OJJqbg>FyKY9h$|NoaM6G}p=za=vccR?TidGLk3}ofdwc}ACc5jr'
    '6m1#w{fAor_TI<T6S!whkD52A%#>m!5sbv1QEk@pP2Svs!GG7a_dma`E;m>H&0nl0Ooj9c4a5HIDSdYk(Y0i2@ve&3H~J4OqkJl9'
    '=4C8;&vWo+Kqjc0UzT2GSptO4Yd<Z71`{<*@b@}51E@B47BbJ~V73IakMvhTtId^5`X)K_*k~H0c}yB_kEF4;A#CcUldT&z$peNZ'
    '6`=}*OR-NKK|D@z-~@q3X=wW-@}-J=;W8=%=0t?p(zhcO*(7v)SeV3%w=Z_L0Cuk=(cbrDMk_%>PtXJ&yfUH6AIbwIZ01sqwGWJX'
    '0hf_OT}g!CzDKk-!efjnszQ(W4vQ40KG$y9GQg3CsSB6j5VeC=zH2S@Nn?7hU=CP@qbPp*_2qFf9rr%Sh?a^+F(Nl|C6|84B=bDS'
    'Q8u$(Wk;^V8Q~7~B@RMNu#hgnN)X|3B8eT)h`Wjtg(r*Yx6ccAbWH2N0fj#te*'))


def test_a_file_without_buffers_and_ties_is_as_it_was(tmp_path, monkeypatch):
    """As version 0.1.0 wrote it, but for the version."""
    monkeypatch.setattr(weights, "__version__", "0.1.0")
    (tmp_path / "w.h5").write_bytes(OLD)
    model = minidl.nn.Sequential(a=minidl.nn.Linear(2, 1), b=minidl.nn.Linear(1, 1, bias=False))
    load(model, tmp_path / "w.h5")
    assert {name: array.tolist() for name, array in model.state_dict().items()} == {
        "a.weight": [[1, 2]], "a.bias": [3], "b.weight": [[4]]}
    model.requires_grad_(False)                    # frozen or not, it is the same model
    save(model, tmp_path / "again.h5")
    assert (tmp_path / "again.h5").read_bytes() == OLD


class Counted(minidl.nn.Module):
    """A parameter, and buffers of several types."""

    def __init__(self, seed):
        super().__init__()
        rng = np.random.default_rng(seed)
        self.layers = [minidl.nn.Linear(2, 2)]
        self.mean = Tensor(rng.standard_normal(3))
        self.count = Tensor([seed])
        self.seen = Tensor(rng.integers(2, size=5).astype(bool))


def test_buffers_are_saved(tmp_path):
    one, other = Counted(1), Counted(2)
    one.layers[0].requires_grad_(False)
    save(one, tmp_path / "w.h5")
    load(other, tmp_path / "w.h5")
    assert list(other.state_dict()) == ["mean", "count", "seen", "layers.0.weight", "layers.0.bias"]
    for name, array in one.state_dict().items():
        assert np.array_equal(other.state_dict()[name], array)
        assert other.state_dict()[name].dtype == array.dtype
    assert other.layers[0].weight.requires_grad


def tied(seed=0, tie=True):
    minidl.manual_seed(seed)
    model = minidl.nn.Sequential(a=minidl.nn.Linear(2, 2), b=minidl.nn.Linear(2, 2))
    if tie:
        model.b.weight = model.a.weight
    return model


def equal(one, other):
    return all(np.array_equal(array, other.state_dict()[name]) for name, array in one.state_dict().items())


def test_ties_are_stored_once_and_load_into_tied_and_untied_models(tmp_path):
    save(tied(1), tmp_path / "w.h5")
    with h5py.File(tmp_path / "w.h5", "r") as file:
        assert json.loads(file.attrs["ties"]) == {"b.weight": "a.weight"}
        assert sorted(file["model/b"]) == ["bias"]
        assert file.attrs["format_version"] == 1
    for tie in (True, False):
        model = tied(2, tie)
        load(model, tmp_path / "w.h5")
        assert equal(tied(1), model)
        assert (model.b.weight is model.a.weight) == tie
    save(model, tmp_path / "untied.h5")            # b.weight is stored too, and equal to a.weight
    model = tied(3)
    load(model, tmp_path / "untied.h5")
    assert equal(tied(1), model)


def test_untied_arrays_that_differ_are_no_tied_model(tmp_path):
    save(tied(1, tie=False), tmp_path / "w.h5")
    model = tied(2)
    before = model.state_dict()
    message = (f"load: '{tmp_path}/w.h5' does not fit 'Sequential': b.weight and a.weight are one array in the model "
               "but differ in the file; untie them in the model")
    with pytest.raises(WeightsError, match=f"^{re.escape(message)}$"):
        load(model, tmp_path / "w.h5")
    assert all(np.array_equal(array, before[name]) for name, array in model.state_dict().items())


def test_a_model_is_given_all_its_names_whatever_the_file_ties(tmp_path):
    """A model of one's own need not know that one name of an array is enough."""
    save(Net(a=np.ones(2, "f4")), tmp_path / "w.h5")
    array = np.zeros(2, "f4")
    model = Net(a=array, b=array)
    model.state_dict = lambda: dict(model.parameters)
    load(model, tmp_path / "w.h5")
    assert (model.loads, array.tolist()) == (1, [1, 1])


def test_other_ties_than_the_models_are_no_matter(tmp_path):
    """Stored under the name that comes second in the model; and tied to one that the model does not tie."""
    twin = np.ones(2, "f4")
    save(Net(b=twin, a=twin, c=twin), tmp_path / "w.h5")
    same_array = np.zeros(2, "f4")
    model = Net(a=same_array, b=same_array, c=np.zeros(2, "f4"))
    model.state_dict = lambda: dict(model.parameters)
    load(model, tmp_path / "w.h5")
    assert model.parameters["a"].tolist() == model.parameters["c"].tolist() == [1, 1]


@pytest.mark.parametrize(("length", "shown"), [(80, "n" * 80), (81, "n" * 77 + "..."), (500, "n" * 77 + "...")])
def test_a_name_from_the_file_takes_80_characters_at_most(tmp_path, length, shown):
    save(Net(**{"n" * length: np.ones(2, "f4")}), tmp_path / "w.h5")
    assert_refused(tmp_path / "w.h5", f" {shown} is missing in the model but (2,) float32 in the file")


@pytest.mark.parametrize(("ties", "message"), [
    ("[1]", "has ties '[1]' but must have a JSON object of names as fixed-length text; write it anew"),
    ('{"x": 3}', "has ties '{\"x\": 3}' but must have a JSON object of names"),
    ("[" * 50_000, "but must have a JSON object of names"),
    (7, "has ties 7 but must have a JSON object of names"),
    ('{"a\\n\\u001b[2J": "c1.bias"}', "has ties '{\"a\\\\n\\\\u001b[2J\": \"c1.bias\"}' but must have a JSON object"),
    ('{"x": "c1.bias"}', "x is missing in the model but (6,) float32 in the file"),
    ('{"c1.bias": "c1.weight"}', "c1.bias is (6,) float32 in the model but stored and tied in the file"),
    ('{"y": "x"}', "y is missing in the model but tied to what is missing in the file"),
    ('{"x": "y", "y": "c1.bias"}', "x is missing in the model but tied to what is missing in the file"),
])
def test_load_refuses_false_ties(path, ties, message):
    with h5py.File(path, "r+") as file:
        file.attrs["ties"] = np.bytes_(ties) if isinstance(ties, str) else ties
    assert_refused(path, message)


def test_nothing_lies_beside_the_model(path):
    with h5py.File(path, "r+") as file:
        file["optimizer/step"] = 3
        file["elsewhere"] = h5py.ExternalLink("missing.h5", "/")
        file.create_group("model/c1/empty")
    assert_refused(path, "c1.empty is missing in the model but an empty group in the file")
    assert_refused(path, "/elsewhere is missing in the model but an external link in the file")
    assert_refused(path, "/optimizer is missing in the model but a group in the file")


def test_nothing_comes_after_the_end(path):
    path.write_bytes(path.read_bytes() + b"more")
    assert_refused(path, "has 4 bytes after its end; choose a file that minidl.save wrote")
    with pytest.raises(WeightsError, match="has 4 bytes after its end"):
        read_metadata(path)


def test_other_layouts_of_hdf5_are_refused(path):
    for options in ({"libver": "earliest"}, {"libver": "latest"}, {"fs_strategy": "page"}):
        with h5py.File(path, "w", **options) as file:
            file["model/c1/bias"] = DATA
        assert_refused(path, "is HDF5 of another layout (its superblock is 0")


def test_few_of_many_mismatches_are_told(tmp_path):
    many = {f"layer{i}.weight": np.ones(2, "f4") for i in range(300)}
    save(Net(**many), tmp_path / "w.h5")
    assert_refused(tmp_path / "w.h5", "in the file; more; build the model that it was saved from", Net(a=DATA))
    save(Net(a=DATA), tmp_path / "w.h5")
    assert_refused(tmp_path / "w.h5", "; 281 more; build the model that it was saved from", Net(**many))


@pytest.mark.parametrize("group", ["", "x."])
@pytest.mark.parametrize("extra", [1, 19, 21, 22, 60])
def test_no_more_than_20_names_that_the_model_does_not_have_are_told(tmp_path, extra, group):
    """And that there are more, where there are."""
    names = [f"{group}n{i:02}" for i in range(extra)]
    own = {group + name: DATA for name in "abc"}
    save(Net(**own, **dict.fromkeys(names, DATA)), tmp_path / "w.h5")
    with pytest.raises(WeightsError) as caught:
        load(Net(**own), tmp_path / "w.h5")
    told = str(caught.value).count("is missing in the model but (6,) float32 in the file")
    assert told == min(extra, 20)
    assert ("; more; build" in str(caught.value)) == (extra > 20)


@pytest.mark.parametrize(("lengths", "told", "more"), [
    ([5000], 1, ""), ([1000, 2000], 2, ""), ([1000, 2001], 1, "; 1 more"), ([2000, 2000, 1], 1, "; 2 more"),
    ([1] * 20, 20, ""), ([1] * 21, 20, "; 1 more")])
def test_the_first_of_what_is_wrong_are_told(lengths, told, more):
    """Up to 20, in 3,000 characters, but one at least; none of those behind one that is left out."""
    items = [letter * length for letter, length in zip("abcdefghijklmnopqrstu", lengths)]
    assert listed(items) == "; ".join(items[:told]) + more
    assert listed(items, False) == "; ".join(items[:told]) + "; more"


def stumble(path, left):
    with files.opened(WEIGHTS, path) as file:
        file.meter.left = left
        raise OSError("stumbled")


def test_what_was_read_beyond_what_a_file_needs_is_the_reason_of_an_error(path):
    """HDF5 then stumbles over what it did not get; whatever else it stumbles over is damage."""
    for left, said in ((-1, "has more beside its arrays than"), (0, "is truncated or damaged (stumbled)")):
        with pytest.raises(WeightsError, match=re.escape(f"load: '{path}' {said}")):
            stumble(path, left)


def test_reading_has_a_limit_which_may_be_reached(path):
    size = 100
    for limit in (size, size - 1):
        with open(path, "rb") as raw:
            meter = Meter(raw, limit, "is too much")
            if limit == size:
                assert meter.readinto(bytearray(size)) == size
            else:
                with pytest.raises(WeightsError, match="is too much"):
                    meter.readinto(bytearray(size))
            raw.seek(0)
            meter = Meter(raw, limit, "is too much")
            assert (meter.read(0), len(meter.read(3)), raw.tell(), meter.left) == (b"", 3, 3, limit - 3)


def test_what_is_no_truth_value_is_damage(tmp_path):
    save(Net(a=np.array([True, False])), tmp_path / "w.h5")
    with h5py.File(tmp_path / "w.h5", "r+") as file:
        file["model/a"][...] = np.array([1, 7], "u1").view(bool)
        file["model/a"].attrs["sha256"] = np.bytes_(hashlib.sha256(b"\1\7").hexdigest())
    assert_refused(tmp_path / "w.h5", "is damaged: a has values other than False and True", Net(a=np.array([True] * 2)))


@pytest.mark.slow
def test_import_does_not_import_h5py():
    assert run("import minidl; print('h5py' in sys.modules)") == "False\n"


# ---------------------------------------------------------------------- what cannot be saved
def test_save_names_a_thing_that_is_no_model(path):
    message = "expected a model but got a str; call minidl."
    with pytest.raises(TypeError, match=re.escape(f"save: {message}save(model, path)")):
        save(str(path), net())
    with pytest.raises(TypeError, match=re.escape(f"load: {message}load(model, path)")):
        load(str(path), net())


PATHS = "", "a..b", ".a", "a/b", "../a", "a b", "a\n", "a\0"


@pytest.mark.parametrize(("parameters", "error", "message"), [
    (dict.fromkeys(("a.b", "a.b.c.d"), DATA), ValueError,
     r"save: a\.b is a parameter and also part of other parameters' names; rename one"),
    *(({name: DATA}, ValueError, re.escape(f"save: parameter name {name!r} must be letters")) for name in PATHS),
    *(({"a": np.ones(2).astype(dtype)}, TypeError, f"save: a is {dtype} but must be float32, .* or int64; convert it "
       "with") for dtype in ("float16", "uint32", "object"))])
def test_save_refuses(tmp_path, parameters, error, message):
    with pytest.raises(error, match=message):
        save(Net(**parameters), tmp_path / "w.h5")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("act", [save, load])
def test_a_model_that_holds_nothing_is_refused(path, act):
    before = path.read_bytes()
    message = f"{act.__name__}: 'Module' holds no Tensor; hold Tensors and Modules as attributes, or in lists,"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        act(minidl.nn.Module(), path)
    assert path.read_bytes() == before


def test_save_refuses_texts_that_load_would_not_read(path):
    model = net()
    model.model_args = {"words": "x" * 2**20}
    with pytest.raises(ValueError, match=r"^save: model_args of 'tiny' takes 1048589 bytes but may take 1048576;"):
        save(model, path)
    for length in (2**20 - 100, 2**20 - len('{"words": ""}')):           # the longest that there may be
        model.model_args = {"words": "x" * length}
        save(model, path)
        load(model, path)
        assert read_metadata(path)["model_args"] == model.model_args


@pytest.mark.parametrize("arguments", [{"f": len}, {"rate": float("nan")}, 3])
def test_save_refuses_arguments_that_are_not_json(tmp_path, arguments):
    model = net()
    model.model_args = arguments
    with pytest.raises(TypeError, match=r"save: model_args of 'tiny' cannot be written as JSON \(.*\); use a"):
        save(model, tmp_path / "w.h5")
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------- where a file cannot be written
def test_save_names_a_missing_folder(tmp_path):
    (tmp_path / "file").touch()
    for name in "no", "file":
        with pytest.raises(FileNotFoundError, match=re.escape(f"save: '{tmp_path}/{name}' is not a folder; create it")):
            save(net(), tmp_path / name / "w.h5")


def test_save_refuses_a_folder(tmp_path):
    message = f"save: '{tmp_path}' is a folder but must be a file, such as '{tmp_path}/weights.h5'"
    with pytest.raises(IsADirectoryError, match=re.escape(message)):
        save(net(), tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_neither_replaced_nor_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    message = f"'{tmp_path}/pipe' is a device or pipe but must be an ordinary file; choose another path"
    with pytest.raises(OSError, match=re.escape(f"save: {message}")):
        save(net(), tmp_path / "pipe")
    with pytest.raises(OSError, match=re.escape(f"load: {message}")):
        load(net(), tmp_path / "pipe")
    assert [entry.name for entry in tmp_path.iterdir()] == ["pipe"]


def unwritable(path, reason):
    return f"save: '{path}' cannot be written ({reason}); choose a folder that is writable and has room"


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), PermissionError(errno.EACCES, "Denied"),
                                   OSError("no number")], ids=str)
def test_a_failure_while_saving_keeps_the_old_file(path, monkeypatch, step, error):
    def fail(*_):
        raise error

    before = path.read_bytes()
    monkeypatch.setattr(os, step, fail)
    message = unwritable(path, error.strerror or error)
    with pytest.raises(type(error), match=f"^{re.escape(message)}$"):
        save(net(seed=2), path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_an_interrupt_while_saving_keeps_the_old_file(path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    before = path.read_bytes()
    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(net(seed=2), path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.slow
def test_a_full_disk_keeps_the_old_file(path):
    """A real failing write: the process may write no file longer than 1000 bytes."""
    pytest.importorskip("resource", reason="needs limits on file sizes")
    before = path.read_bytes()
    output = run("import minidl, resource, test_weights\n"
                 "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
                 "try:\n"
                 "    minidl.save(test_weights.net(seed=2), sys.argv[1])\n"
                 "except OSError as error:\n"
                 "    print(error)", path)
    assert output == unwritable(path, "File too large") + "\n"
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_saving_through_a_symbolic_link_keeps_the_link(path):
    link = path.with_name("latest.h5")
    link.symlink_to(path.name)
    save(net(seed=2), link)
    assert link.is_symlink()
    model = net()
    load(model, path)
    assert same(model, net(seed=2))


def test_the_file_and_then_the_folder_are_synced(tmp_path, monkeypatch):
    steps = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (steps.append(os.path.isdir(f"/dev/fd/{fd}")), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda a, b: (steps.append(Path(b).name), replace(a, b)))
    save(net(), tmp_path / "w.h5")
    assert steps == [False, "w.h5", True]


@pytest.mark.skipif(not hasattr(os, "fchmod"), reason="needs POSIX permissions")
def test_permissions_stay_and_a_new_file_follows_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        save(net(), tmp_path / "w.h5")
        assert (tmp_path / "w.h5").stat().st_mode & 0o7777 == 0o640
        for mode in (0o600, 0o666, 0o444):
            (tmp_path / "w.h5").chmod(mode)
            save(net(), tmp_path / "w.h5")
            assert (tmp_path / "w.h5").stat().st_mode & 0o7777 == mode
    finally:
        os.umask(before)


@pytest.mark.skipif(not hasattr(os, "fchmod"), reason="needs POSIX permissions")
def test_a_private_file_is_private_while_it_is_written(path, monkeypatch):
    path.chmod(0o600)
    modes, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (modes.append(os.fstat(fd).st_mode & 0o777), fsync(fd)))
    save(net(), path)
    assert modes[0] == 0o600


def test_what_killed_saves_left_is_removed_after_an_hour(path):
    names = {".minidl-0123456789abcdef.tmp": 3700, ".minidl-0123456789abcde0.tmp": 3500, ".minidl-mine.tmp": 9999,
             "x.minidl-0123456789abcdef.tmp": 9999, ".minidl-0000000000000000.tmp": 9999}
    now = path.stat().st_mtime
    for name, age in names.items():
        (path.parent / name).mkdir() if name.startswith(".minidl-00") else (path.parent / name).touch()
        os.utime(path.parent / name, (now - age, now - age))
    save(net(), path)
    assert {entry.name for entry in path.parent.iterdir()} == {path.name, *list(names)[1:]}


def test_a_folder_that_cannot_be_synced_is_no_failure(path, monkeypatch):
    fsync = os.fsync

    def fail(fd):
        if os.path.isdir(f"/dev/fd/{fd}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", fail)
    message = (f"save: '{path}' was written, but its folder could not be synced (Invalid argument); after a power "
               "failure the older file may be there")
    with pytest.warns(RuntimeWarning, match=f"^{re.escape(message)}$"):
        save(net(seed=2), path)
    model = net()
    load(model, path)
    assert same(model, net(seed=2))


# ---------------------------------------------------------------------- where there is no file to read
def test_load_names_a_missing_file(tmp_path):
    message = "does not exist; check the path, or write it with minidl.save"
    assert_refused(tmp_path / "w.h5", message, error=FileNotFoundError)
    (tmp_path / "w.h5").symlink_to("nowhere")
    assert_refused(tmp_path / "w.h5", message, error=FileNotFoundError)
    with pytest.raises(FileNotFoundError, match=message):
        read_metadata(tmp_path / "w.h5")


def test_load_refuses_a_folder(tmp_path):
    assert_refused(tmp_path, "is a folder but must be a file, such as", error=IsADirectoryError)


def test_load_names_an_unreadable_file(path, monkeypatch):
    def denied(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("builtins.open", denied)
    assert_refused(path, "cannot be read (Permission denied); change its permissions", error=PermissionError)


@pytest.mark.parametrize("content", [b"", b"\x89HDF", b"PK\x03\x04 a zip file", b"<html>404</html>"])
def test_load_refuses_what_is_not_hdf5(tmp_path, content):
    (tmp_path / "w.h5").write_bytes(content)
    assert_refused(tmp_path / "w.h5", f"is not an HDF5 file (it starts with {content[:8]!r} instead of "
                                      "b'\\x89HDF\\r\\n\\x1a\\n'); choose a file that minidl.save wrote")


# ---------------------------------------------------------------------- damaged files
def test_every_truncation_is_noticed(path):
    good = path.read_bytes()
    for length in range(8, len(good), 13):
        path.write_bytes(good[:length])
        assert_refused(path, "is truncated or damaged (")


def test_a_failing_read_is_told_in_one_line(path, monkeypatch):
    def fail(*_):
        raise OSError("file read failed:\n  errno = 5 in '\x1b[2J\x07'")

    monkeypatch.setattr(hdf5.Hdf5, "values", fail)
    assert_refused(path, r"is truncated or damaged (file read failed: errno = 5 in '\x1b[2J\x07'); copy it again from")


@pytest.mark.parametrize("part", tiered(range(16), slow=1))
def test_every_flipped_byte_is_noticed(path, part):
    good = path.read_bytes()
    for place in range(part, len(good), 16):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1 << place % 8]) + good[place + 1:])
        assert_refused(path, "; c")  # "copy it again" or "choose a file"


def test_all_damaged_parameters_are_listed(path):
    good = path.read_bytes()
    wrong = bytearray(good)
    for name in ("c1.bias", "features.0.weight"):
        wrong[good.index(net(seed=1).parameters[name].tobytes())] ^= 1
    path.write_bytes(wrong)
    noted = hashlib.sha256(net(seed=1).parameters["c1.bias"].tobytes()).hexdigest()
    assert_refused(path, "is damaged: c1.bias has sha256 ")
    assert_refused(path, f" but its attribute says {noted!r}; features.0.weight has sha256 ")
    assert_refused(path, "; copy it again from where it came from")


@pytest.mark.parametrize("value", [None, "0" * 64, np.zeros(3), 7, "\x1b[31m\nred"])
def test_a_parameter_needs_its_checksum(path, value):
    with h5py.File(path, "r+") as file:
        attributes = file["model/c1/weight"].attrs
        del attributes["sha256"]
        if value is not None:
            attributes["sha256"] = np.bytes_(value) if isinstance(value, str) else value
    shown = value if isinstance(value, (str, int)) else None
    assert_refused(path, f"but its attribute says {shown!r}; copy it again")


# ---------------------------------------------------------------------- the root attributes
@pytest.mark.parametrize(("name", "value", "message"), [
    ("format", None, "has format None but must have the fixed-length text 'minidl'; choose a file that"),
    ("format", np.bytes_("keras"), "has format 'keras' but must have the fixed-length text 'minidl'"),
    ("format", "minidl", "has format None but must have the fixed-length text 'minidl'"),  # variable length
    ("format", np.bytes_(["minidl"]), "has format None but must have"),
    ("format", np.bytes_(b"a\xff\nb"), "has format 'a\\\\xff\\nb' but must have"),
    ("format", np.ones(3), "has format None but must have"),
    ("format_version", None, f"has format_version None but minidl {minidl.__version__} reads 1; read it with"),
    ("format_version", 2, f"has format_version 2 but minidl {minidl.__version__} reads 1; read it with minidl "
                          f"'{minidl.__version__}', which wrote it"),
    ("model", None, "has model None but must have a fixed-length text; write it anew with minidl.save"),
    ("model_args", None, "has model_args None but must have a JSON object as fixed-length text; write it anew"),
    ("model_args", np.bytes_("{'a'"), "has model_args \"{'a'\" but must have a JSON object"),
    ("model_args", np.bytes_("[1]"), "has model_args '[1]' but must have a JSON object"),
    ("model_args", np.bytes_("[" * 60000), "but must have a JSON object"),
])
def test_load_checks_the_root_attributes(path, name, value, message):
    with h5py.File(path, "r+") as file:
        del file.attrs[name]
        if value is not None:
            file.attrs[name] = value
    assert_refused(path, message)
    with pytest.raises(WeightsError, match=re.escape(message)):
        read_metadata(path)


# ---------------------------------------------------------------------- files that do not fit
def test_all_mismatches_are_listed_at_once(tmp_path):
    one = Net(**{"c1.weight": np.ones((6, 3, 5, 5), "f4"), "c1.bias": np.ones(6), "c3.bias": np.ones(2, "f4")})
    one.model_name = "bigger"
    two = Net(**{"c1.weight": np.ones((6, 1, 5, 5), "f4"), "c1.bias": np.ones(6, "f4"),
                 "f6.bias": np.ones(84, "f4")})
    save(one, tmp_path / "w.h5")
    assert_refused(tmp_path / "w.h5", "was saved from 'bigger' and does not fit 'tiny': "
                   "c1.weight is (6,1,5,5) float32 in the model but (6,3,5,5) float32 in the file; "
                   "c1.bias is (6,) float32 in the model but (6,) float64 in the file; "
                   "f6.bias is (84,) float32 in the model but missing in the file; "
                   "c3.bias is missing in the model but (2,) float32 in the file; "
                   "build the model that it was saved from, or write it anew with minidl.save", two)


def test_nothing_is_allocated_or_read_before_all_fits(path, monkeypatch):
    monkeypatch.setattr(hdf5.Hdf5, "values", lambda *_: pytest.fail("a parameter was read"))
    smaller = net()
    smaller.parameters["features.0.weight"] = np.ones((3, 5), "f4")
    assert_refused(path, "features.0.weight is (3,5) float32 in the model but (3,4) float32 in the file", smaller)


def test_a_tiny_file_cannot_claim_a_huge_array(path):
    with h5py.File(path, "r+") as file:
        del file["model/c1/bias"]
        file["model/c1"].create_dataset("bias", shape=(10**12,), dtype="f4")
    assert path.stat().st_size < 10_000
    assert_refused(path, "c1.bias is (6,) float32 in the model but (1000000000000,) float32 in the file")


def test_a_dataset_without_data_fails_its_checksum(path):
    with h5py.File(path, "r+") as file:
        del file["model/c1/bias"]
        file["model/c1"].create_dataset("bias", shape=(6,), dtype="f4")
    assert_refused(path, "c1.bias has sha256")


def plant(file, **options):
    file["model/c1"].create_dataset("bias", **options)


def plant_virtual(file):
    layout = h5py.VirtualLayout((6,), "f4")
    layout[:] = h5py.VirtualSource("secret.h5", "x", (6,))
    file["model/c1"].create_virtual_dataset("bias", layout)


def plant_compact(file):
    storage = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    storage.set_layout(h5py.h5d.COMPACT)
    h5py.h5d.create(file["model/c1"].id, b"bias", h5py.h5t.IEEE_F32LE, h5py.h5s.create_simple((6,)), storage)



@pytest.mark.parametrize(("edit", "found"), [
    (lambda f: None, "missing"),
    (lambda f: f["model/c1"].update(bias=h5py.SoftLink("/model/features/0/weight")), "a soft link"),
    (lambda f: f["model/c1"].update(bias=h5py.ExternalLink("secret.h5", "/x")), "an external link"),
    (lambda f: f["model/c1"].update(bias=np.dtype("f4")), "a named type"),
    (plant_virtual, "a virtual dataset"),
    (lambda f: plant(f, shape=(6,), dtype="f4", external=[("secret.bin", 0, 24)]), "kept in another file"),
    (lambda f: plant(f, data=DATA, compression="gzip"), "compressed or filtered"),
    (lambda f: plant(f, data=DATA, shuffle=True), "compressed or filtered"),
    (lambda f: plant(f, data=DATA, fletcher32=True), "compressed or filtered"),
    (lambda f: plant(f, data=DATA, chunks=(2,)), "chunked or compact"),
    (plant_compact, "chunked or compact"),
    (lambda f: plant(f, data=h5py.Empty("f4")), "empty"),
    (lambda f: plant(f, data=np.float32(1)), "() float32"),
    (lambda f: plant(f, data=DATA.astype(">f4")), "(6,) float of 4 bytes"),
    (lambda f: plant(f, data=DATA.astype("f2")), "(6,) float of 2 bytes"),
    (lambda f: plant(f, data=DATA.astype("i4")), "(6,) int32"),
    (lambda f: plant(f, data=DATA.astype(">i4")), "(6,) integer of 4 bytes"),
    (lambda f: plant(f, data=DATA.astype("u4")), "(6,) integer of 4 bytes"),
    (lambda f: plant(f, data=DATA.astype(bool)), "(6,) bool"),
    (lambda f: plant(f, shape=(6,), dtype=h5py.enum_dtype({"TRUE": 0, "FALSE": 1})), "(6,) enum of 1 bytes"),
    (lambda f: plant(f, data=DATA.astype("S4")), "(6,) string of 4 bytes"),
    (lambda f: plant(f, data=DATA.astype("V4")), "(6,) opaque of 4 bytes"),
    (lambda f: plant(f, data=np.zeros(6, [("re", "f4"), ("im", "f4")])), "(6,) compound of 8 bytes"),
    (lambda f: plant(f, shape=(6,), dtype=np.dtype(("f4", (2,)))), "(6,) array of 8 bytes"),
    (lambda f: plant(f, shape=(6,), dtype=h5py.string_dtype()), "(6,) string of"),
    (lambda f: plant(f, shape=(6,), dtype=h5py.vlen_dtype("f4")), "(6,) vlen of"),
    (lambda f: plant(f, shape=(6,), dtype=h5py.ref_dtype), "(6,) reference of"),
])
def test_load_refuses_all_but_plain_arrays(path, edit, found):
    with h5py.File(path, "r+") as file:
        del file["model/c1/bias"]
        edit(file)
    assert_refused(path, f"c1.bias is (6,) float32 in the model but {found}")


@pytest.mark.parametrize(("edit", "name", "found"), [
    (lambda f: f["model"].update(x=np.ones(2)), "x", "(2,) float64"),
    (lambda f: f["model"].update(x=h5py.ExternalLink("a.h5", "/")), "x", "an external link"),
    (lambda f: f["model/c1"].update(x=f["model"]), "c1.x", "a second link to another entry"),
    (lambda f: f["model"].create_dataset("c1.bias", data=DATA), "'c1.bias'", "(6,) float32"),
    (lambda f: f["model"].create_dataset("a\nb", data=DATA), "'a\\nb'", "(6,) float32"),
    (lambda f: f["model"].create_dataset(b"a\xff", data=DATA), "a\\xff", "(6,) float32"),
    (lambda f: f.move("model", "away") or f.update(model=h5py.SoftLink("/away")), "/model", "a soft link"),
    (lambda f: f.move("model", "away") or f.update(model=DATA), "/model", "(6,) float32"),
], ids=["dataset", "link", "cycle", "dotted", "two lines", "not UTF-8", "linked model", "dataset as model"])
def test_load_refuses_what_the_model_does_not_have(path, edit, name, found):
    with h5py.File(path, "r+") as file:
        edit(file)
    assert_refused(path, f"{name} is missing in the model but {found} in the file")


def test_load_refuses_a_file_without_the_model_group(path):
    with h5py.File(path, "r+") as file:
        del file["model"]
    assert_refused(path, "c1.weight is (6,1,5,5) float32 in the model but missing in the file; c1.bias is")


def test_two_parameters_do_not_share_one_dataset(path):
    with h5py.File(path, "r+") as file:
        file["model/twin"] = file["model/c1/bias"]
    model = net()
    model.parameters["twin"] = np.zeros(6, "f4")
    assert_refused(path, "in the model but a second link to another entry in the file", model)


def test_a_slash_in_a_link_name_is_not_a_path(path):
    """HDF5 itself would read "bias/x" as a path, through whatever link stands at "bias"."""
    with h5py.File(path, "w", libver="earliest") as file:  # the old layout has no checksum over names
        file["model/bias"] = h5py.ExternalLink("secret.h5", "/")
        file["model/bias_x"] = DATA
    path.write_bytes(path.read_bytes().replace(b"bias_x", b"bias/x"))
    with h5py.File(path, "r") as file:
        found, all_seen = hdf5.Hdf5(file, Meter(io.BytesIO(), 0, ""), "model", {}, {}).entries({"bias": DATA})
    assert found == {"bias": "an external link", "bias/x": "an unknown link"}
    assert all_seen


# ---------------------------------------------------------------------- what a model takes and gives
PREPROCESSING = {"mean": [0.5, 0.25], "std": [0.125, 1], "padding": 2}


# A ZWNJ as in Persian, a soft hyphen, a space of Chinese, a mark of direction; and what changes a terminal.
CLASSES = ["T-shirt/top", "\u6f22\u3000b", "\u06a9\u062a\u0627\u0628\u200c\u0647\u0627", "a\u00ad\u200f", "y" * 200]
NOT_NAMES = ["", "x" * 201, "\x1b[31m", "a\nb", "a\tb", "a\u2028b", "a\udcffb", *(f"a{chr(each)}b" for each in (
    0x202A, 0x202E, 0x2066, 0x2069))]


def test_preprocessing_classes_and_columns_are_kept(tmp_path):
    save(net(), tmp_path / "w.h5", preprocessing=PREPROCESSING, classes=CLASSES, columns=("p", "q r"))
    found = read_metadata(tmp_path / "w.h5")
    assert (found["preprocessing"], found["classes"], found["columns"]) == (PREPROCESSING, CLASSES, ["p", "q r"])
    load(net(), tmp_path / "w.h5")


BAD_PREPROCESSING = {
    "a list": [1], "a text": "x", "no padding": {"mean": [0], "std": [1]}, "more": {**PREPROCESSING, "size": 3},
    "no channel": {"mean": [], "std": [], "padding": 0}, "other lengths": {"mean": [0, 1], "std": [1], "padding": 0},
    "a number": {"mean": 0, "std": 1, "padding": 0}, "a bool": {"mean": [True], "std": [1], "padding": 0},
    "words": {"mean": ["0"], "std": [1], "padding": 0}, "zero": {"mean": [0], "std": [0], "padding": 0},
    "negative": {"mean": [0], "std": [1], "padding": -1}, "a half": {"mean": [0], "std": [1], "padding": 0.5},
    "true": {"mean": [0], "std": [1], "padding": True}, "wide": {"mean": [0], "std": [1], "padding": 1025},
    "infinite": {"mean": [float("inf")], "std": [1], "padding": 0}, "digits": {
        "mean": [10**400], "std": [1], "padding": 0},
    "nan": {"mean": [0], "std": [float("nan")], "padding": 0},
    "channels": {"mean": [0] * 1025, "std": [1] * 1025, "padding": 0}}
BAD_CLASSES = {"a text": "x", "an object": {"a": 1}, "none": [], "numbers": [1], "an empty text": ["a", ""],
               **{ascii(name): ["fine" * 20, name] for name in NOT_NAMES}, "many": ["x"] * (2**16 + 1)}


@pytest.mark.parametrize(("name", "value"), [
    *(pytest.param("preprocessing", value, id=f"preprocessing {kind}") for kind, value in BAD_PREPROCESSING.items()),
    *(pytest.param(name, value, id=f"{name} {kind}") for name in ("classes", "columns")
      for kind, value in BAD_CLASSES.items())])
def test_false_preprocessing_and_classes_are_neither_written_nor_read(path, name, value):
    must = {"preprocessing": 'must be a JSON object {"mean": [...], "std": [...], "padding": n}, with finite',
            **dict.fromkeys(["classes", "columns"], "must be a JSON list of 1 to 65536 printable texts of 1 to 200 "
                                                    "characters")}[name]
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"^save: {name} is .* but {re.escape(must)}.*; pass ") as caught:
        save(net(), path, **{name: value})
    assert len(str(caught.value)) < 500
    assert path.read_bytes() == before
    with h5py.File(path, "r+") as file:
        file.attrs[name] = np.bytes_(json.dumps(value))
    assert_refused(path, must.replace("must be", "but must have"))
    with pytest.raises(WeightsError, match=re.escape(f"has {name} ")):
        read_metadata(path)


@pytest.mark.parametrize(("given", "said"), [
    (Dataset("d", "train", np.zeros((2, 1, 2, 2), np.uint8), np.arange(2), ("a", "b\tc")),
     r"save: classes is ['a', 'b\tc'], with 'b\tc', but must be a JSON list of 1 to 65536 printable texts"),
    (Dataset("d", "train", np.zeros((2, 1, 2, 2), np.uint8), np.arange(2), (1, 2)),
     "save: classes is [1, 2], with 1, but must be"),
    (Table("t", "train", np.zeros((2, 2000)), np.arange(2)), "save: preprocessing is "),
    (Table("t", "train", np.full((2, 1), 1e31), np.arange(2)), "save: preprocessing is ")])
def test_what_a_file_cannot_hold_is_refused_before_the_training(given, said, tmp_path):
    loader = DataLoader(given, 2, **({} if isinstance(given, Dataset) else given.preprocessing()))
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        RunFolder(tmp_path / "run", minidl.nn.Linear(4, 2), loader)
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        SaveBest(minidl.nn.Linear(4, 2), tmp_path / "w.h5", data=loader)
    assert not (tmp_path / "run").exists()


def test_a_model_of_other_options_than_the_files_is_warned_of(tmp_path):
    """Its weights fit, but it computes something else."""
    save(zoo.build("lenet5", activation="relu"), tmp_path / "w.h5")
    with pytest.warns(UserWarning, match=re.escape(
            "w.h5' was saved from 'lenet5' with activation='relu' there and 'tanh' here; if the net is to compute")):
        load(zoo.build("lenet5"), tmp_path / "w.h5")
    same = zoo.build("lenet5", activation="relu")
    same.model_args |= {"of_today": 1, "in_channels": np.int64(1)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(same, tmp_path / "w.h5")


# ---------------------------------------------------------------------- the zoo's model of a file
@pytest.mark.parametrize(("name", "options"), [
    ("lenet5", {"activation": "relu", "classes": 3}), ("krizhevsky2009", {"filters": 2}),
    ("mlp", {"hidden": 5, "in_channels": 1}), ("perceptron", {})])
def test_load_builds_the_zoos_model_by_itself(tmp_path, name, options):
    model = zoo.build(name, **options)
    save(model, tmp_path / "w.h5")
    built = load(tmp_path / "w.h5")
    assert (built.model_name, built.model_args, repr(built)) == (name, model.model_args, repr(model))
    assert equal(model, built)
    assert load(str(tmp_path / "w.h5")).training


def edited(path, **attributes):
    with h5py.File(path, "r+") as file:
        for name, value in attributes.items():
            file.attrs[name] = np.bytes_(value if isinstance(value, str) else json.dumps(value))
    return path


@pytest.mark.parametrize(("attributes", "message"), [
    ({"model": "vgg"}, f"was saved from 'vgg', which is not one of the zoo's {', '.join(zoo.MODELS)}; build its "
                          "model and call minidl.load(model, path)"),
    ({"model": "__class__"}, "was saved from '__class__', which is not one of the zoo's"),
    ({"model": "mlp", "model_args": {"hidden": 9, "in_channels": 1}},
     "was saved from 'mlp' and does not fit 'mlp': hidden.weight is (9,1024) float32 in the model but missing"),
    ({"model_args": {"hidden": 3}}, "was saved from 'perceptron' with the option 'hidden': 3, but its options are like "
                                    "in_channels=1, classes=10; build its model and call minidl.load(model, path)"),
    ({"model_args": {"classes": "10"}}, "with the option 'classes': '10', but its options are like"),
    ({"model_args": {"classes": [10] * 1000}}, "with the option 'classes': [10, 10, "),
    ({"model_args": {"classes": True}}, "with the option 'classes': True, but its options"),
    ({"model_args": {"classes": None}}, "with the option 'classes': None, but its options"),
    ({"model_args": {"classes": 3.0}}, "with the option 'classes': 3.0, but its options"),
    ({"model_args": {"classes": 2**40}}, "with the option 'classes': 1099511627776, but its options"),
    ({"model_args": {"classes": -1}}, "with the option 'classes': -1, but its options"),
    ({"model_args": {"\x1b[2J": 1}}, "with the option '\\x1b[2J': 1, but its options"),
    ({"model_args": {"classes": 0}}, "which cannot be built as it says (Linear: out_features is 0 but must be an int"),
    ({"model_args": {"classes": 2**31}}, "which cannot be built as it says (init: a parameter of shape (2147483648, "
                                         "1024) takes 8796093022208 bytes but only "),
    ({"model_args": {"classes": 9}}, "output.weight is (9,1024) float32 in the model but (10,1024) float32 in the f"),
    ({"model": "lenet5", "model_args": {"activation": "\x07" * 80}},
     "which cannot be built as it says (zoo: activation '\\x07"),
    ({"model": "lenet5", "model_args": {"activation": "x" * 81}}, "with the option 'activation': 'xxx"),
])
def test_load_builds_no_model_that_a_file_makes_up(tmp_path, attributes, message):
    save(zoo.build("perceptron"), tmp_path / "w.h5")
    with pytest.raises(WeightsError, match=re.escape(message)) as caught:
        load(edited(tmp_path / "w.h5", **attributes))
    assert str(caught.value).startswith(f"load: '{tmp_path}/w.h5' ")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def test_load_alone_wants_a_path(tmp_path):
    with pytest.raises(TypeError, match=r"^load: got a Linear alone; call minidl.load\(model, path\), or minidl.load"):
        load(minidl.nn.Linear(1, 1))
    with pytest.raises(FileNotFoundError, match=f"^load: '{tmp_path}/w.h5' does not exist; check the path"):
        load(tmp_path / "w.h5")


def test_what_load_may_build_bounds_no_model_of_ones_own(tmp_path):
    save(zoo.build("perceptron"), edited_path := tmp_path / "w.h5")
    with pytest.raises(WeightsError, match="cannot be built"):
        load(edited(edited_path, model_args={"classes": 10**6}))
    assert minidl.nn.Linear(1000, 1000).weight.size == 10**6


@pytest.mark.parametrize(("name", "start", "advice"), [
    ("n.keras", b"PK\3\4", "is a whole net of Keras, whose code is not run here; in Keras write its weights, "
     "net.save_weights('net.weights.h5'), build the net here and load that file"),
    ("n.h5", b"\x89HDF\r\n\x1a\n" + bytes(40), "; if Keras 3's save_weights wrote it, rename it to end in ")])
def test_files_of_keras_are_told_how_they_are_read(tmp_path: Path, name: str, start: bytes, advice: str) -> None:
    """The advice was a file that minidl.save wrote."""
    (tmp_path / name).write_bytes(start + bytes(200))
    with pytest.raises(WeightsError, match=re.escape(advice)):
        load(zoo.build("perceptron"), tmp_path / name)
