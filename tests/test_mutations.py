"""A mutation check: each mutant of the core must make a test fail, or those tests prove nothing."""

import pytest
from mutations import MUTATIONS, copy_sources, mutate, python_in, run_all

pytestmark = pytest.mark.slow

MODULES = sorted({mutation.path for mutation in MUTATIONS})


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return run_all(tmp_path_factory.mktemp("mutants"))


def test_the_copy_wins_over_the_installed_package(tmp_path):
    copy_sources(tmp_path)
    names = ["grimboost." + path.removesuffix(".py").replace("/", ".") for path in MODULES]
    listing = "\n".join([f"import {name}; print({name}.__file__)" for name in names])
    done = python_in(tmp_path, "-c", listing)
    assert done.status == 0, done.output
    files = done.output.split()
    assert len(files) == len(MODULES)
    assert all(file.startswith(str(tmp_path)) for file in files), files


def test_without_a_mutation_the_same_tests_pass(runs):
    assert runs["unchanged"].status == 0, runs["unchanged"].output


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutant_is_noticed(mutation, runs):
    run = runs[mutation.name]
    assert run.status == 1, f"exit status {run.status}\n{run.output}"
    assert " failed" in run.output


def test_a_mutation_whose_text_is_gone_is_reported(tmp_path):
    copy_sources(tmp_path)
    mutate(tmp_path, MUTATIONS[0])
    with pytest.raises(ValueError, match="stands 0 times"):
        mutate(tmp_path, MUTATIONS[0])
