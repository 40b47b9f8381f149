"""Old names of packages warn, and are the new ones."""

import pytest

import fnopt


@pytest.mark.parametrize("package", [fnopt.core, fnopt.programs], ids=lambda p: p.__name__)
def test_every_old_name_warns(package):
    for old, new in package._RENAMED.items():
        module, _, name = new.rpartition(".")
        with pytest.warns(DeprecationWarning, match=f"write {module or package.__name__}.{name}"):
            found = getattr(package, old)
        assert module or found is getattr(package, name)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"'fnopt\.core' has no attribute 'xyzzy'"):
        fnopt.core.xyzzy  # noqa: B018
