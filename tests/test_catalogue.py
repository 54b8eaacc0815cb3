"""The catalogue's constants, inheritance between files, and what broken files lead to."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from planner.catalogue import DEEPEST_CHAIN, LARGEST_FILE, accelerator_names, load_accelerator
from planner.errors import InputError
from planner.hardware import Accelerator, constant_fields

ROOT = Path(__file__).parents[1]
MIB = 2**20

# SMs, FLOP/clock/thread, clock, sustained, HBM, L2, its bandwidth, DSMEM, memory, bidirectional networks
PAPER = {
    "v100-sxm2": (80, 8, 1.533e9, 0.90, 900e9, 6 * MIB, 2155e9, False, 3.2e10, 3e11, 1.25e10),
    "a100-sxm-40gb": (108, 16, 1.410e9, 0.85, 1555e9, 40 * MIB, 5603e9, False, 4e10, 6e11, 5e10),
    "h100-sxm": (132, 32, 1.830e9, 0.70, 3352e9, 50 * MIB, 6441e9, True, 8e10, 9e11, 1e11),
    "h100-pcie": (114, 32, 1.620e9, 0.55, 2039e9, 50 * MIB, 5563e9, True, 8e10, 9e11, 1e11),
}

# Dense 16-bit peak of the data sheets [FLOP/s]
PEAKS = {
    "v100-sxm2": 125e12,
    "a100-sxm-40gb": 312e12,
    "a100-sxm-80gb": 312e12,
    "h100-sxm": 989.4e12,
    "h100-pcie": 756e12,
    "h200-sxm": 989.4e12,
    "h800-sxm": 989.4e12,
    "b200-sxm": 2250e12,
    "b300-sxm": 2250e12,
    "gb200-nvl72": 2500e12,
    "gb300-nvl72": 2500e12,
    "mi300x": 1307.4e12,
    "mi325x": 1307.4e12,
    "mi355x": 2516.6e12,
    "tpu-v5p": 459e12,
    "tpu-v6e": 918e12,
    "tpu-v7": 2307e12,
}

VARIANTS = {
    "h100-sxm-low-latency": ((8, None), (4.5e11, 5e10), 1.125e-7, 4.5e-7),
    "h100-sxm-global-nvlink": ((None,), (4.5e11,), 1.125e-6, 4.5e-6),
    "h100-sxm-global-nvlink-low-latency": ((None,), (4.5e11,), 1.125e-7, 4.5e-7),
    "h100-sxm-infinite-network-low-latency": ((None,), (math.inf,), 1.125e-7, 4.5e-7),
    "h100-sxm-superpod": ((8, 32, None), (4.5e11, 2.25e11, 5e10), 1.125e-6, 4.5e-6),
}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_constants(name):
    sms, flop, clock, share, hbm, l2, l2_rate, mesh, memory, node, cluster = PAPER[name]
    chip = load_accelerator(name)
    assert chip.peak == flop * 128 * sms * clock
    assert (chip.units, chip.max_clock, chip.sustained_share) == (sms, clock, share)
    assert (chip.memory_bandwidth, chip.l2_capacity, chip.l2_bandwidth) == (hbm, l2, l2_rate)
    assert (chip.unit_network, chip.memory_capacity, chip.matmul_overhead) == (mesh, memory, 4.5e-6)
    assert (chip.register_blocks_per_unit, chip.register_bytes_per_block) == (4, 65536)
    assert chip.shared_memory_bandwidth == 32 * 4 * sms * (share * clock)
    assert (chip.usable_share, chip.matmul_padding, chip.word_bytes) == (0.75, 8, 2)
    assert [level.size for level in chip.network] == [8, None]
    assert [2 * level.bandwidth for level in chip.network] == [node, cluster]
    assert [level.latency for level in chip.network] == [1.125e-6] * 2


@pytest.mark.parametrize("name", VARIANTS)
def test_the_papers_variants_differ_from_the_h100_in_nothing_else(name):
    sizes, rates, latency, overhead = VARIANTS[name]
    chip, base = load_accelerator(name), load_accelerator("h100-sxm")
    assert tuple(level.size for level in chip.network) == sizes
    assert tuple(level.bandwidth for level in chip.network) == rates
    assert {level.latency for level in chip.network} == {latency}
    assert chip.matmul_overhead == overhead
    theirs = {"name", "title", "network", "matmul_overhead", "sources"}
    assert chip.model_dump(exclude=theirs) == base.model_dump(exclude=theirs)


def test_the_80_gb_a100_is_the_papers_with_other_memory():
    chip, base = load_accelerator("a100-sxm-80gb"), load_accelerator("a100-sxm-40gb")
    assert (chip.memory_capacity, chip.memory_bandwidth) == (8e10, 2039e9)
    theirs = {"name", "title", "sources", "memory_capacity", "memory_bandwidth"}
    assert chip.model_dump(exclude=theirs) == base.model_dump(exclude=theirs)


def test_the_tables_here_cover_the_catalogue():
    assert set(accelerator_names()) == set(PEAKS) | set(VARIANTS)
    assert list(accelerator_names()) == sorted(accelerator_names())


@pytest.mark.parametrize("name", PEAKS)
def test_peaks_are_those_of_the_data_sheets(name):
    assert load_accelerator(name).peak == pytest.approx(PEAKS[name], rel=0.02)


@pytest.mark.parametrize("name", accelerator_names())
def test_every_constant_has_a_source_or_is_an_estimate(name):
    chip = load_accelerator(name)
    assert chip.name == name
    noted = {*chip.sources, *chip.estimates}
    labels = {"name", "title", "vendor", "year", "network", "network.name"}
    unnoted = [f for f in constant_fields() if f not in labels | noted and f.split(".")[0] not in noted]
    assert "*" in noted or not unnoted
    if "*" in noted:
        assert "2411.01137" in chip.sources["*"]


@pytest.mark.parametrize("name", accelerator_names())
def test_the_constants_are_plausible(name):
    chip = load_accelerator(name)
    assert chip.memory_bandwidth < chip.l2_bandwidth < chip.shared_memory_bandwidth or "tpu" in name
    assert chip.l2_capacity * chip.usable_share < chip.memory_capacity / 100
    rates = [level.bandwidth for level in chip.network]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] < chip.memory_bandwidth or rates[0] == math.inf
    # A register tile is reused enough that shared memory does not cap large matmuls below the tensor cores.
    edge = math.sqrt(chip.usable_share * chip.register_bytes_per_block / chip.word_bytes)
    assert 3 * chip.word_bytes / (2 * edge) * chip.sustained < chip.shared_memory_bandwidth


def test_nvl72_is_one_domain():
    assert load_accelerator("gb200-nvl72").level_sizes == load_accelerator("gb300-nvl72").level_sizes == (72,)


def test_names_in_any_case_and_files_load_alike(tmp_path):
    chip = load_accelerator("H100-SXM")
    assert chip == load_accelerator("h100-sxm")
    saved = tmp_path / "copy.json"
    saved.write_text("\ufeff" + chip.model_dump_json(), encoding="utf-8")
    assert load_accelerator(str(saved)) == chip


def test_a_file_without_suffix_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine").write_text(load_accelerator("h100-sxm").model_dump_json())
    assert load_accelerator("mine").name == "h100-sxm"
    Path("h100-sxm").write_text("{")
    assert load_accelerator("h100-sxm").units == 132


def test_the_documented_example_loads():
    chip = load_accelerator(str(ROOT / "docs" / "examples" / "gtx-580.json"))
    assert chip.peak == 16 * 32 * 2 * 1.544e9
    assert (chip.word_bytes, chip.unit_network, chip.level_sizes) == (4, False, (8,))


def test_the_examples_in_the_page_load(tmp_path):
    page = (ROOT / "docs" / "accelerators.md").read_text()
    blocks = [part.split("```")[0] for part in page.split("```json\n")[1:]]
    assert blocks
    for block in blocks:
        (tmp_path / "mine.json").write_text(block)
        load_accelerator(str(tmp_path / "mine.json"))
    for name in accelerator_names():
        assert f"| {name} |" in page


def test_loading_the_catalogue_module_is_cheap():
    code = "import sys, planner.catalogue as c; c.accelerator_names(); print(*sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "planner.catalogue" in out.stdout.split()
    assert not {"numpy", "pydantic"} & set(out.stdout.split())


# --- extends


def put(folder, name, /, **data):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(data))
    return str(path)


def test_extends_keeps_what_is_not_given(tmp_path):
    chip = load_accelerator(put(tmp_path, "h100-96gb.json", extends="H100-SXM", memory_capacity=9.6e10))
    base = load_accelerator("h100-sxm")
    assert (chip.name, chip.memory_capacity) == ("h100-96gb", 9.6e10)
    theirs = {"name", "title", "memory_capacity", "sources"}
    assert chip.model_dump(exclude=theirs) == base.model_dump(exclude=theirs)
    assert chip.title != base.title
    assert "h100-96gb.json" in chip.sources["memory_capacity"]
    assert chip.sources["*"] == base.sources["*"]


def test_notes_on_a_value_do_not_outlive_it(tmp_path):
    base = load_accelerator("b200-sxm")
    assert {"network.latency", "l2_bandwidth", "sustained_share"} <= set(base.estimates)
    path = put(
        tmp_path,
        "mine.json",
        extends="b200-sxm",
        l2_bandwidth=2e13,
        sustained_share=0.7,
        network=[{"name": "all", "size": None, "bandwidth": "inf", "latency": 0}],
        sources={"l2_bandwidth": "measured"},
        estimates={"sustained_share": "a guess"},
    )
    chip = load_accelerator(path)
    assert chip.sources["l2_bandwidth"] == "measured"
    assert chip.estimates["sustained_share"] == "a guess"
    assert not {"l2_bandwidth", "network.latency"} & set(chip.estimates)
    assert not {"sustained_share", "network.size"} & set(chip.sources)
    assert "mine.json" in chip.sources["network"]
    assert chip.estimates["register_bytes_per_block"] == base.estimates["register_bytes_per_block"]


def test_a_note_alone_replaces_only_that_note(tmp_path):
    path = put(tmp_path, "a.json", extends="b200-sxm", estimates={"network.latency": "measured here"})
    chip, base = load_accelerator(path), load_accelerator("b200-sxm")
    assert chip.estimates == base.estimates | {"network.latency": "measured here"}
    assert chip.sources == base.sources


def test_a_general_source_speaks_of_its_own_file_only(tmp_path):
    chip = load_accelerator(put(tmp_path, "a.json", extends="h100-sxm", units=144, sources={"*": "mine"}))
    assert chip.sources["units"] == "mine"
    assert "2411.01137" in chip.sources["*"]


def test_extends_is_relative_to_the_file(tmp_path, monkeypatch):
    put(tmp_path, "base/root.json", extends="v100-sxm2", units=84, name="root")
    path = put(tmp_path, "more/leaf.json", extends="../base/root.json", max_clock=1e9)
    monkeypatch.chdir("/")
    chip = load_accelerator(path)
    assert (chip.units, chip.max_clock, chip.name) == (84, 1e9, "leaf")


def chain(folder, length):
    put(folder, "f0.json", extends="h100-sxm")
    for i in range(1, length):
        put(folder, f"f{i}.json", extends=f"f{i - 1}.json")
    return str(folder / f"f{length - 1}.json")


def test_long_chains(tmp_path):
    assert load_accelerator(chain(tmp_path, DEEPEST_CHAIN)).units == 132
    with pytest.raises(InputError, match=f"f0.json: extends .* more than {DEEPEST_CHAIN}"):
        load_accelerator(chain(tmp_path, DEEPEST_CHAIN + 1))


def test_cycles(tmp_path):
    put(tmp_path, "a.json", extends="./b.json")
    put(tmp_path, "b.json", extends="a.json")
    with pytest.raises(InputError, match=r"b\.json: extends .*extend each other"):
        load_accelerator(str(tmp_path / "a.json"))
    with pytest.raises(InputError, match=r"c\.json: extends .*extend each other"):
        load_accelerator(put(tmp_path, "c.json", extends="c.json"))


@pytest.mark.parametrize("base", ["h100-sxn", "", 3, None, ["h100-sxm"], "none.json", "\0", "/dev/null"])
def test_bad_bases(tmp_path, base):
    with pytest.raises(InputError, match=r"own\.json: extends|none\.json|/dev/null"):
        load_accelerator(put(tmp_path, "own.json", extends=base))


# --- unknown names


def test_unknown_names_offer_the_nearest():
    with pytest.raises(InputError, match=r"^accelerator = 'h100-sxn': .*did you mean h100-sxm") as caught:
        load_accelerator("h100-sxn")
    assert (caught.value.problems[0].field, caught.value.problems[0].value) == ("accelerator", "h100-sxn")


@pytest.mark.parametrize("name", ["zzzzzz", "", " ", "\0", "\ud800", "\x1b[31m", "x" * 100_000])
def test_unknown_names_with_nothing_near_list_all(name):
    with pytest.raises(InputError, match=r"known are .*h100-sxm.*v100-sxm2"):
        load_accelerator(name)


# --- broken files


def sound(**changes):
    data = json.loads(load_accelerator("h100-sxm").model_dump_json())
    return json.dumps(data | changes)


BROKEN = {
    "empty": ("", "empty"),
    "blank": (" \n\t", "empty"),
    "truncated": ('{\n "name": "x",\n "units": ', r"line 3, column 11"),
    "trailing comma": ('{"name": "x",}', "line 1, column"),
    "two values": ("{} {}", "line 1, column 4"),
    "not an object": ("[1, 2]", "must be a JSON object"),
    "null": ("null", "must be a JSON object"),
    "not utf-8": (b'{"name": "\xff\xfe"}', "not UTF-8 at byte 10"),
    "utf-16": ('{"name": "x"}'.encode("utf-16"), "NUL"),
    "nul bytes": (b"\0" * 50, "NUL bytes"),
    "nul inside": (b'{"name": "a\0b"}', "NUL bytes"),
    "deep lists": ("[" * 100_000, "nested too deeply"),
    "deep objects": ('{"a":' * 500 + "1" + "}" * 500, "nested too deeply"),
    "deep field": (f'{{"extends": "h100-sxm", "units": {"[" * 40}{"]" * 40}}}', "nested too deeply"),
    "twice": ('{"units": 1, "units": 2}', "units.* given 2 times"),
    "twice inside": (sound()[:-1] + ', "estimates": {"units": "a", "units": "b"}}', "given 2 times"),
    "nan": (sound(max_clock=math.nan), "NaN.*not JSON"),
    "infinity": (sound(max_clock=math.inf), 'Infinity.*"inf"'),
    "minus infinity": (sound(max_clock=-math.inf), "-Infinity"),
    "overflow": (sound().replace("1830000000.0", "1e999"), "1e999.* beyond the range"),
    "huge integer": (sound().replace("132", "9" * 5000), "5000 characters is too long"),
    "large integer": (sound().replace("132", "9" * 60), "units.*less than or equal"),
    "wrong type": (sound(units="132"), "units.*valid integer"),
    "boolean": (sound(max_clock=True), "max_clock.*valid number"),
    "network is a number": (sound(network=3), "network"),
    "network is a name": (sound(network="node"), "network"),
    "levels are numbers": (sound(network=[1, 2]), r"network\.0.*\n.*network\.1"),
    "sources is a list": (sound(sources=["x"]), "sources"),
    "sources in a child": ('{"extends": "h100-sxm", "units": 1, "sources": 3}', "sources"),
    "estimates in a child": ('{"extends": "h100-sxm", "estimates": [1]}', "estimates"),
    "unknown field": (sound(max_clok=1), "max_clok.*did you mean max_clock"),
    "unknown in a child": ('{"extends": "h100-sxm", "unit": 3}', "unit .*did you mean units"),
    "unknown level field": (
        sound(network=[{"name": "a", "size": None, "bandwith": 1, "latency": 0}]),
        r"network\.0\.bandwith.*did you mean bandwidth",
    ),
    "missing fields": ("{}", "units = .*required"),
    "surrogate": ('{"\\ud800": 1}', "file"),
    "surrogate value": (sound(title="\ud800"), "title"),
    "escape codes": (sound(**{"\x1b[31mred": 1}), r"\\x1b"),
    "escape in a note": (sound(sources={"*": "x", "\x1b[31m": 3}), r"\\x1b"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files(tmp_path, case):
    content, said = BROKEN[case]
    path = tmp_path / "file.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    with pytest.raises(InputError, match=said) as caught:
        load_accelerator(str(path))
    text = str(caught.value)
    assert "file.json" in text
    assert text.replace("\n", "").isprintable()
    assert all(len(line) < 600 for line in text.splitlines())


def test_all_problems_of_a_file_are_reported(tmp_path):
    path = tmp_path / "file.json"
    path.write_text(sound(units=0, max_clock="x", colour=1, sources={}))
    with pytest.raises(InputError) as caught:
        load_accelerator(str(path))
    fields = {problem.field.split(": ")[-1] for problem in caught.value.problems}
    assert fields == {"units", "max_clock", "colour", "sources"}


@pytest.mark.parametrize("note", [None, "sources", "estimates"])
def test_a_flood_of_problems_is_cut_short(tmp_path, note):
    flood = {f"field{i}": 1 for i in range(30_000)}
    path = tmp_path / "file.json"
    path.write_text(sound(**({note: flood} if note else flood)))
    with pytest.raises(InputError, match="the first 50 are listed") as caught:
        load_accelerator(str(path))
    assert len(caught.value.problems) == 51


def test_misspelt_notes_are_cut_short(tmp_path):
    path = tmp_path / "file.json"
    path.write_text(sound(sources={f"field{i}": "x" for i in range(30_000)}))
    with pytest.raises(InputError, match="and more"):
        load_accelerator(str(path))


def test_missing_files_and_directories(tmp_path):
    with pytest.raises(InputError, match=r"accelerator = .*nowhere\.json.*no such file"):
        load_accelerator(str(tmp_path / "nowhere.json"))
    with pytest.raises(InputError, match="directory"):
        load_accelerator(str(tmp_path))
    with pytest.raises(InputError, match=r"cannot be read|no such file"):
        load_accelerator("x" * 5000 + ".json")
    (tmp_path / "file").write_text("{}")
    with pytest.raises(InputError, match="cannot be read: Not a directory"):
        load_accelerator(str(tmp_path / "file" / "x.json"))


def test_large_files_are_refused(tmp_path):
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(50 * LARGEST_FILE)
    with pytest.raises(InputError, match=r"large\.json.*52428800 bytes"):
        load_accelerator(str(path))
    path.write_bytes(b" " * (LARGEST_FILE + 1))
    with pytest.raises(InputError, match="bytes"):
        load_accelerator(str(path))
    path.write_bytes(sound().encode().ljust(LARGEST_FILE))
    assert load_accelerator(str(path)).units == 132


@pytest.mark.skipif(os.name != "posix", reason="needs pipes and devices")
def test_pipes_devices_and_loops_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(InputError, match=r"pipe\.json.*not a regular file"):
        load_accelerator(str(tmp_path / "pipe.json"))
    for device in ("/dev/zero", "/dev/null"):
        with pytest.raises(InputError, match=f"{device}.*not a regular file"):
            load_accelerator(device)
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    with pytest.raises(InputError, match=r"loop\.json.*cannot be read"):
        load_accelerator(str(tmp_path / "loop.json"))
    (tmp_path / "dangling.json").symlink_to(tmp_path / "gone.json")
    with pytest.raises(InputError, match=r"dangling\.json.*no such file"):
        load_accelerator(str(tmp_path / "dangling.json"))


def test_unreadable_files(tmp_path, monkeypatch):
    path = tmp_path / "secret.json"
    path.write_text(sound())

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InputError, match=r"secret\.json.*cannot be read: Permission denied"):
        load_accelerator(str(path))


def test_the_catalogue_files_are_accelerators_as_they_stand():
    for path in (ROOT / "instances" / "accelerators").glob("*.json"):
        data = json.loads(path.read_text())
        assert data["name"] == path.stem
        assert ("extends" in data) or Accelerator.model_validate(data)
