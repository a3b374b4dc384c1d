"""Weights files: what is written, what is refused, and that nothing is ever half done."""

import errno
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import minidl
from minidl import weights
from minidl.weights import WeightsError, load, read_metadata, save


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
    folders = [str(Path(minidl.__file__).parents[1]), str(Path(__file__).parent)]
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
    save(model, str(tmp_path / "w.h5"))
    load(other, str(tmp_path / "w.h5"))
    assert all(a.tobytes() == b.tobytes() for a, b in
               zip(model.parameters.values(), other.parameters.values(), strict=True))
    assert other.loads == 1


@pytest.mark.parametrize("array", [np.float32(3.5).reshape(()), np.zeros((0, 3), "f4"), np.arange(6.0)[::2],
                                   np.arange(6.0).reshape(2, 3).T, np.arange(3, dtype=">f8")],
                         ids=["scalar", "size 0", "strided", "transposed", "big-endian"])
def test_every_kind_of_array_comes_back(tmp_path, array):
    model = Net(a=np.zeros_like(array))
    save(Net(a=array), tmp_path / "w.h5")
    load(model, tmp_path / "w.h5")
    assert np.array_equal(model.parameters["a"], array)
    with h5py.File(tmp_path / "w.h5", "r") as file:
        dataset = file["model/a"]
        assert dataset.dtype == array.dtype.newbyteorder("<")
        assert dataset.attrs["sha256"].decode() == hashlib.sha256(dataset[()].tobytes()).hexdigest()


def test_a_model_may_have_no_parameters_and_any_name(tmp_path):
    model = Net()
    for model.model_name in ("", "LeNet-5 \u6f22"):
        save(model, tmp_path / "w.h5")
        load(Net(), tmp_path / "w.h5")
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


def test_equal_weights_give_equal_bytes(path, tmp_path):
    again = tmp_path / "again.h5"
    save(net(seed=1), again)
    assert again.read_bytes() == path.read_bytes()
    run("import minidl, test_weights; minidl.save(test_weights.net(seed=1), sys.argv[1])", again)
    assert again.read_bytes() == path.read_bytes()


def test_metadata_says_how_to_build_the_model_again(path):
    assert read_metadata(path) == {"format": "minidl", "format_version": 1, "minidl_version": minidl.__version__,
                                   "model": "tiny", "model_args": {"padding": [4, 3], "activation": "tanh"}}


def test_other_groups_are_left_alone(path):
    with h5py.File(path, "r+") as file:
        file["optimizer/step"] = 3
        file["elsewhere"] = h5py.ExternalLink("missing.h5", "/")
    model = net()
    load(model, path)
    assert same(model, net(seed=1))


def test_import_does_not_import_h5py():
    assert run("import minidl; print('h5py' in sys.modules)") == "False\n"


# ---------------------------------------------------------------------- what cannot be saved
def test_save_names_a_thing_that_is_no_model(path):
    message = "expected a model but got a str; call minidl."
    with pytest.raises(TypeError, match=re.escape(f"save: {message}save(model, path)")):
        save(str(path), net())
    with pytest.raises(TypeError, match=re.escape(f"load: {message}load(model, path)")):
        load(str(path), net())


def test_save_refuses_a_parameter_that_is_a_module_too(tmp_path):
    message = "save: a.b is a parameter and also part of other parameters' names; rename one"
    with pytest.raises(ValueError, match=re.escape(message)):
        save(Net(**{name: np.ones(2, "f4") for name in ("a.b", "a.b.c.d")}), tmp_path / "w.h5")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", "a..b", ".a", "a/b", "../a", "a b", "a\n", "a\0"])
def test_save_refuses_a_name_that_is_no_path(tmp_path, name):
    with pytest.raises(ValueError, match=re.escape(f"save: parameter name {name!r} must be letters")):
        save(Net(**{name: np.ones(2, "f4")}), tmp_path / "w.h5")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", ["float16", "int64", "object"])
def test_save_refuses_other_dtypes(tmp_path, dtype):
    with pytest.raises(TypeError, match=f"save: a is {dtype} but must be float32 or float64; convert the model"):
        save(Net(a=np.ones(2).astype(dtype)), tmp_path / "w.h5")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [{"f": len}, {"rate": float("nan")}, 3])
def test_save_refuses_arguments_that_are_not_json(tmp_path, arguments):
    model = net()
    model.model_args = arguments
    with pytest.raises(TypeError, match=r"save: model_args of 'tiny' cannot be written as JSON \(.*\); use a"):
        save(model, tmp_path / "w.h5")
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------- where a file cannot be written
def test_save_names_a_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=re.escape(f"save: '{tmp_path}/no' is not a folder; create it")):
        save(net(), tmp_path / "no" / "w.h5")
    (tmp_path / "no").write_text("a file")
    with pytest.raises(FileNotFoundError, match=re.escape(f"save: '{tmp_path}/no' is not a folder; create it")):
        save(net(), tmp_path / "no" / "w.h5")


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
        raise OSError("file read failed:\n  errno = 5")

    monkeypatch.setattr(weights, "_read", fail)
    assert_refused(path, "is truncated or damaged (file read failed: errno = 5); copy it again from where it came")


def test_every_flipped_byte_is_noticed(path):
    good = path.read_bytes()
    for place in range(len(good)):
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
    assert_refused(path, f" but its attribute says {noted}; features.0.weight has sha256 ")
    assert_refused(path, "; copy it again from where it came from")


@pytest.mark.parametrize("value", [None, "0" * 64, np.zeros(3), 7])
def test_a_parameter_needs_its_checksum(path, value):
    with h5py.File(path, "r+") as file:
        attributes = file["model/c1/weight"].attrs
        del attributes["sha256"]
        if value is not None:
            attributes["sha256"] = np.bytes_(value) if isinstance(value, str) else value
    shown = value if isinstance(value, (str, int)) else None
    assert_refused(path, f"but its attribute says {shown}; copy it again")


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
    monkeypatch.setattr(weights, "_read", lambda *_: pytest.fail("a parameter was read"))
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



DATA = np.ones(6, "f4")


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
    (lambda f: plant(f, data=DATA.astype("i4")), "(6,) integer of 4 bytes"),
    (lambda f: plant(f, data=DATA.astype(bool)), "(6,) enum of 1 bytes"),
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
        file.attrs.update(format=np.bytes_("minidl"), format_version=1, model=np.bytes_("tiny"),
                          model_args=np.bytes_("{}"))
        file["model/bias"] = h5py.ExternalLink("secret.h5", "/")
        file["model/bias_x"] = DATA
    path.write_bytes(path.read_bytes().replace(b"bias_x", b"bias/x"))
    assert_refused(path, "bias/x is missing in the model but an unknown link in the file")
