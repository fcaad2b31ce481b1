from jax_smash.tasks.world import Event, World


def world_after(*events):
    world = World()
    for event in events:
        world.apply(event)
    return world


TOM_IN_MILL = Event("go", "Tom", "mill")
TOM_TAKES_CUP = Event("take", "Tom", "cup")


def test_a_thing_travels_with_its_holder():
    world = world_after(TOM_IN_MILL, TOM_TAKES_CUP, Event("go", "Tom", "cave"))
    assert world.object_place("cup") == "cave"


def test_a_dropped_thing_stays():
    world = world_after(TOM_IN_MILL, TOM_TAKES_CUP, Event("drop", "Tom", "cup"), Event("go", "Tom", "cave"))
    assert world.object_place("cup") == "mill"
    assert world.holder_of == {}


def test_a_given_thing_travels_with_the_other():
    world = world_after(
        TOM_IN_MILL,
        Event("go", "Ida", "mill"),
        TOM_TAKES_CUP,
        Event("give", "Tom", "cup", "Ida"),
        Event("go", "Ida", "zoo"),
    )
    assert world.holder_of == {"cup": "Ida"}
    assert world.object_place("cup") == "zoo"
    assert world.place_of == {"Tom": "mill", "Ida": "zoo"}


def test_a_thing_that_nobody_took_is_nowhere():
    assert world_after(TOM_IN_MILL).object_place("cup") is None


def test_only_places_visited_once_have_one_before():
    moves = [Event("go", "Tom", place) for place in ("cave", "mill", "zoo")]
    world = world_after(TOM_IN_MILL, TOM_TAKES_CUP, *moves)
    assert world.unique_moves("cup") == [("mill", "cave"), ("mill", "zoo")]


def test_to_rest_changes_nothing():
    world = world_after(TOM_IN_MILL, Event("rest", "Tom", "Ida"))
    assert world.place_of == {"Tom": "mill"}
