"""Resources: what is set up, in which order, by which protocol, and torn down past errors."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from contextlib import contextmanager
from enum import Enum
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from supervisor.flows.errors import ConfigurationError, ResourceNotFound, ResourceTypeMismatch
from supervisor.flows.resources import Health, Opened, Resource, Resources


class Recorded:
    """Writes down what is done to it; fails where it is told to."""

    def __init__(self, name: str, log: list[str], fails: dict[str, BaseException] | None = None) -> None:
        self.name, self.log, self.fails = name, log, fails or {}

    def setup(self) -> None:
        self._did("setup")

    def teardown(self) -> None:
        self._did("teardown")

    def _did(self, what: str) -> None:
        self.log.append(f"{what} {self.name}")
        if what in self.fails:
            raise self.fails[what]


class Managed:
    """A context manager that gives something else than itself."""

    def __init__(self, log: list[object]) -> None:
        self.log = log

    def __enter__(self) -> str:
        self.log.append("enter")
        return "entered"

    def __exit__(self, *args: object) -> bool:
        self.log.append(args)
        return True


def recorded(log: list[str], *names: str, **fails: dict[str, BaseException]) -> Resources:
    return Resources(**{name: Recorded(name, log, fails.get(name)) for name in names})


# -- looking up


def test_a_resource_is_found_under_its_key_as_the_same_object() -> None:
    first, second = object(), object()
    res = Resources(first=first).insert("second", second)
    assert res["first"] is first
    assert res.get("second", object) is second
    assert res.get("second") is second
    assert "first" in res
    assert "third" not in res
    assert len(res) == 2
    assert res.keys() == list(res) == ["first", "second"]


def test_a_container_without_resources_is_empty() -> None:
    assert len(Resources()) == 0
    assert Resources().keys() == []
    assert Resources().health() == {}


def test_keys_may_be_enum_members() -> None:
    class K(Enum):
        DB = 1

    res = Resources().insert(K.DB, 5)
    assert res.open()[K.DB] == 5
    with pytest.raises(ResourceNotFound, match=r"there is no resource 'db'; there are K\.DB"):
        res["db"]


def test_a_missing_key_names_the_known_ones() -> None:
    for look in (lambda res: res["c"], lambda res: res.get("c", int)):
        with pytest.raises(ResourceNotFound) as caught:
            look(Resources(a=1, b=2))
        assert str(caught.value) == "there is no resource 'c'; there are 'a', 'b'"
        assert isinstance(caught.value, KeyError)


def test_a_wrong_type_names_both_types() -> None:
    with pytest.raises(ResourceTypeMismatch) as caught:
        Resources(a=1).get("a", str)
    assert str(caught.value) == "resource 'a' is of type int, asked for was str"
    assert isinstance(caught.value, TypeError)


def test_get_takes_an_instance_of_a_subclass() -> None:
    error = ValueError()
    assert Resources(a=error).get("a", Exception) is error


def test_a_key_in_use_is_refused_and_nothing_is_changed() -> None:
    res = Resources(a=1)
    with pytest.raises(ConfigurationError, match="there is a resource 'a' already"):
        res.insert("a", 2)
    assert res["a"] == 1


def test_a_key_that_has_no_hash_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"must be hashable, got \[\]"):
        Resources().insert([], 1)  # type: ignore[arg-type]


def test_a_resource_may_be_called_self() -> None:
    assert Resources(self=1)["self"] == 1


def test_what_a_run_got_takes_no_more_resources() -> None:
    view = Resources(a=1).open()
    with pytest.raises(ConfigurationError, match="resource 'b' comes too late"):
        view.insert("b", 2)


def test_what_is_inserted_while_a_run_lasts_is_not_in_that_run() -> None:
    res = Resources(a=1)
    view = res.open()
    res.insert("b", 2)
    assert view.keys() == ["a"]
    assert res.open().keys() == ["a", "b"]


# -- set-up and tear-down


def test_set_up_goes_in_order_of_insertion_and_tear_down_in_reverse() -> None:
    log: list[str] = []
    recorded(log, "a", "b", "c").open().close()
    assert log == ["setup a", "setup b", "setup c", "teardown c", "teardown b", "teardown a"]


def test_a_failed_set_up_tears_down_what_is_before_it_and_leaves_the_rest_untouched() -> None:
    log: list[str] = []
    boom = ValueError("boom")
    with pytest.raises(ValueError, match="boom") as caught:
        recorded(log, "a", "b", "c", "d", c={"setup": boom}).open()
    assert log == ["setup a", "setup b", "setup c", "teardown b", "teardown a"]
    assert caught.value is boom
    assert boom.__notes__ == ["while setting up resource 'c'"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_set_up_is_rolled_back_whatever_it_raised(kind: type[BaseException]) -> None:
    log: list[str] = []
    with pytest.raises(kind):
        recorded(log, "a", "b", b={"setup": kind()}).open()
    assert log == ["setup a", "setup b", "teardown a"]


def test_a_failed_set_up_surfaces_though_the_roll_back_fails_too() -> None:
    log: list[str] = []
    reports: list[tuple[str, BaseException]] = []
    res = recorded(log, "a", "b", "c", b={"teardown": OSError("down")}, c={"setup": ValueError("boom")})
    with pytest.raises(ValueError, match="boom"):
        res.open(report=lambda key, error: reports.append((key, error)))
    assert log == ["setup a", "setup b", "setup c", "teardown b", "teardown a"]
    assert [(key, str(error)) for key, error in reports] == [("b", "down")]


def test_an_error_that_takes_no_notes_surfaces_as_it_is() -> None:
    class StubbornError(Exception):
        def add_note(self, note: str, /) -> None:
            raise RuntimeError(note)

    with pytest.raises(StubbornError):
        recorded([], "a", a={"setup": StubbornError()}).open()


def test_tear_down_goes_on_past_errors_and_each_is_logged_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log: list[str] = []
    fails = {name: {"teardown": kind(name)} for name, kind in (("a", OSError), ("c", SystemExit))}
    view = recorded(log, "a", "b", "c", **fails).open()
    reports: list[tuple[str, BaseException]] = []
    with caplog.at_level(logging.ERROR, "supervisor"):
        view.close(lambda key, error: reports.append((key, error)))
    assert log[3:] == ["teardown c", "teardown b", "teardown a"]
    assert reports == [("c", fails["c"]["teardown"]), ("a", fails["a"]["teardown"])]
    assert [record.getMessage().split(" (in")[0] for record in caplog.records] == [
        "tear-down of resource 'c' failed: SystemExit: c",
        "tear-down of resource 'a' failed: OSError: a",
    ]


def test_a_ctrl_c_in_tear_down_is_raised_once_all_is_torn_down() -> None:
    log: list[str] = []
    view = recorded(log, "a", "b", b={"teardown": KeyboardInterrupt()}).open()
    with pytest.raises(KeyboardInterrupt):
        view.close()
    assert log[2:] == ["teardown b", "teardown a"]


def test_closing_twice_tears_down_once() -> None:
    log: list[str] = []
    view = recorded(log, "a").open()
    view.close()
    view.close()
    assert log == ["setup a", "teardown a"]


def test_look_ups_go_on_working_after_tear_down() -> None:
    view = Resources(a=1).open()
    view.close()
    assert view["a"] == 1


def test_each_run_sets_up_and_tears_down_anew() -> None:
    log: list[str] = []
    res = recorded(log, "a")
    for _ in range(2):
        res.open().close()
    assert log == ["setup a", "teardown a"] * 2


# -- which protocol


def test_tasks_get_what_a_context_manager_returned_on_entry() -> None:
    log: list[object] = []
    manager = Managed(log)
    res = Resources(m=manager)
    view = res.open()
    assert view["m"] == "entered"
    assert view.get("m", str) == "entered"
    assert res["m"] is manager
    view.close()
    assert log == ["enter", (None, None, None)]


def test_set_up_and_tear_down_methods_win_over_the_context_manager_protocol() -> None:
    class Both(Managed):
        def teardown(self) -> None:
            self.log.append("teardown")

    log: list[object] = []
    both = Both(log)
    view = Resources(both=both).open()
    assert view["both"] is both
    view.close()
    assert log == ["teardown"]


def test_a_context_manager_whose_entry_fails_is_not_exited() -> None:
    class Broken(Managed):
        def __enter__(self) -> str:
            super().__enter__()
            raise ValueError("closed")

    log: list[object] = []
    with pytest.raises(ValueError, match="closed"):
        Resources(m=Broken(log)).open()
    assert log == ["enter"]


def test_a_generator_as_a_context_manager_is_entered_and_exited() -> None:
    log: list[str] = []

    @contextmanager
    def connection() -> Any:
        log.append("connect")
        yield "connection"
        log.append("disconnect")

    view = Resources(db=connection()).open()
    assert view["db"] == "connection"
    view.close()
    assert log == ["connect", "disconnect"]


def test_one_method_is_enough() -> None:
    log: list[str] = []
    view = Resources(
        up=SimpleNamespace(setup=lambda: log.append("up")),
        down=SimpleNamespace(teardown=lambda: log.append("down")),
    ).open()
    view.close()
    assert log == ["up", "down"]


@pytest.mark.parametrize(
    "value",
    [
        None,
        0,
        "text",
        Recorded,
        Managed,
        len,
        json,
        SimpleNamespace(setup="a text", teardown=3, health=100),
        threading.Lock(),
        threading.RLock(),
        threading.Condition(),
        threading.BoundedSemaphore(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_classes_functions_modules_locks_and_plain_things_are_values(value: object) -> None:
    view = Resources(value=value).open()
    assert view["value"] is value
    assert view.health() == {}
    view.close()


def test_a_lock_given_as_a_resource_is_free_for_the_tasks() -> None:
    view = Resources(lock=threading.Lock()).open()
    with view["lock"]:
        pass


def test_a_base_class_does_nothing_and_is_healthy() -> None:
    resource = Resource()
    view = Resources(r=resource).open()
    assert view["r"] is resource
    assert view.health() == {"r": Health.HEALTHY}
    view.close()


def test_names_that_a_client_makes_up_are_not_its_methods() -> None:
    class Collection:
        def __call__(self) -> None:
            raise TypeError("a collection is not callable")

    class Client:
        def __getattr__(self, name: str) -> Collection:
            return Collection()

    client = Client()
    view = Resources(client=client).open()
    assert view["client"] is client
    assert view.health() == {}
    view.close()


def test_a_wrapper_passes_on_the_methods_of_what_it_wraps() -> None:
    class Wrapper:
        def __init__(self, inner: object) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    log: list[str] = []
    Resources(w=Wrapper(Recorded("inner", log))).open().close()
    assert log == ["setup inner", "teardown inner"]


def test_a_mock_is_set_up_and_stays_itself() -> None:
    mock = MagicMock()
    view = Resources(m=mock).open()
    assert view["m"] is mock
    view.close()
    mock.setup.assert_called_once_with()
    mock.teardown.assert_called_once_with()
    mock.__enter__.assert_not_called()


def test_a_resource_whose_attributes_raise_is_a_value() -> None:
    class Unbound:
        def __getattr__(self, name: str) -> object:
            raise RuntimeError("no object behind this proxy")

    unbound = Unbound()
    view = Resources(u=unbound).open()
    assert view["u"] is unbound
    view.close()


def _coroutine_method() -> object:
    class R:
        async def setup(self) -> None: ...

    return R()


def _generator_method() -> object:
    class R:
        def teardown(self) -> Any:
            yield

    return R()


def _method_with_arguments() -> object:
    class R:
        def health(self, deep: bool) -> None: ...

    return R()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (_coroutine_method, "setup of resource 'r': .* is a coroutine function"),
        (_generator_method, "teardown of resource 'r': .* is a generator function"),
        (_method_with_arguments, "health of resource 'r' needs 1 argument"),
    ],
)
def test_a_method_that_would_not_run_is_refused(make: Callable[[], object], text: str) -> None:
    res = Resources()
    with pytest.raises(ConfigurationError, match=text):
        res.insert("r", make())
    assert len(res) == 0


# -- one object for several flows


def test_an_object_shared_by_several_flows_is_set_up_once_and_torn_down_by_the_last() -> None:
    log: list[str] = []
    shared, opened = Recorded("shared", log), Opened()
    one = Resources(s=shared, a=Recorded("a", log)).open(opened)
    two = Resources(other_key=shared, b=Recorded("b", log)).open(opened)
    assert one["s"] is two["other_key"] is shared
    one.close()
    two.close()
    assert log == ["setup shared", "setup a", "setup b", "teardown a", "teardown b", "teardown shared"]
    assert len(opened) == 0


def test_flows_that_share_a_context_manager_get_the_same_entered_value() -> None:
    log: list[object] = []
    manager, opened = Managed(log), Opened()
    views = [Resources(m=manager).open(opened) for _ in range(3)]
    assert [view["m"] for view in views] == ["entered"] * 3
    for view in reversed(views):
        view.close()
    assert log == ["enter", (None, None, None)]


def test_one_object_under_two_keys_is_set_up_once() -> None:
    log: list[str] = []
    both = Recorded("x", log)
    Resources(a=both, b=both).open().close()
    assert log == ["setup x", "teardown x"]


def test_a_flow_whose_set_up_fails_leaves_what_it_shares_to_the_others() -> None:
    log: list[str] = []
    shared, opened = Recorded("shared", log), Opened()
    one = Resources(s=shared).open(opened)
    with pytest.raises(ValueError, match="boom"):
        Resources(s=shared, b=Recorded("b", log, {"setup": ValueError("boom")})).open(opened)
    assert log == ["setup shared", "setup b"]
    one.close()
    assert log == ["setup shared", "setup b", "teardown shared"]


def test_a_shared_object_whose_tear_down_fails_is_not_torn_down_again() -> None:
    log: list[str] = []
    shared, opened = Recorded("shared", log, {"teardown": ValueError()}), Opened()
    views = [Resources(s=shared).open(opened) for _ in range(2)]
    for view in views:
        view.close()
    assert log == ["setup shared", "teardown shared"]


def test_equal_objects_are_not_the_same_object() -> None:
    class Equal(Recorded):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    log: list[str] = []
    Resources(a=Equal("a", log), b=Equal("b", log)).open().close()
    assert log == ["setup a", "setup b", "teardown b", "teardown a"]


# -- health


def _raises() -> Health:
    raise OSError("gone")


@pytest.mark.parametrize(
    ("tell", "health"),
    [
        (lambda: Health.DEGRADED, Health.DEGRADED),
        (lambda: "degraded", Health.DEGRADED),
        (lambda: True, Health.HEALTHY),
        (lambda: None, Health.HEALTHY),
        (lambda: False, Health.UNHEALTHY),
        (lambda: "fine", Health.UNHEALTHY),
        (lambda: 1, Health.UNHEALTHY),
        (list, Health.UNHEALTHY),
        (_raises, Health.UNHEALTHY),
    ],
)
def test_what_health_tells_is_read_as(tell: Callable[[], object], health: Health) -> None:
    view = Resources(r=SimpleNamespace(health=tell)).open()
    assert view.health() == {"r": health}
    assert type(view.health()["r"]) is Health


def test_health_asks_only_those_that_can_tell() -> None:
    res = Resources(n=5, r=Resource(), c=Resource)
    assert res.health() == {"r": Health.HEALTHY}


def test_health_asks_what_a_context_manager_gave_if_itself_cannot_tell() -> None:
    @contextmanager
    def pool() -> Any:
        yield SimpleNamespace(health=lambda: Health.DEGRADED)

    res = Resources(pool=pool())
    assert res.health() == {}
    view = res.open()
    assert view.health() == {"pool": Health.DEGRADED}
    view.close()


def test_a_ctrl_c_while_health_is_asked_gets_out() -> None:
    def interrupted() -> Health:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Resources(r=SimpleNamespace(health=interrupted)).health()
