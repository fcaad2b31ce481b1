"""What the tasks are made of: keys, values, variables, coded words, plain words; none of the training split's."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import TypeVar

from jax_smash.tasks.dice import Dice
from jax_smash.tasks.words import WORDS, invented_name

T = TypeVar("T")
SPLIT = "test"

_ADJECTIVES = """
able absent active alert ancient angry awake bitter bold brave brief bright calm careful cheap civil clear clever
common complex cool correct curious daily damp dark deep distant double eager early easy elegant empty equal exact
fair famous fast final fine firm fresh gentle grand hidden honest hollow humble humid idle inner joint keen kind large
late lazy level light local lonely long loose loud loyal mellow mild minor modern modest narrow neat nervous noble
normal odd open patient plain polite proud pure quick quiet rapid rare raw ready rich ripe rough royal rural safe
secret serious sharp shy silent simple single slim slow sober solid steady steep stiff still strange strict strong
subtle sudden tender thick thin tidy tight tired total tough urban useful usual vague vast warm weak wet whole wide
wild wise worn young
"""
_PLAIN = """
accept account action address advance advice affair agree aim allow amount anger angle answer appeal area argue arrive
aspect attempt author autumn average balance base battle beauty begin belief benefit blame bless blood blow board
border borrow bottom brain branch breath brief bridge bring budget build burden burst business calm campaign capital
care carry case catch cause century chain chance change chapter charge choice circle claim class climb close cloud
coast colour column comfort command company complain concern condition connect consider contain content contract
control cost cotton council count couple courage course cover create credit crime crisis culture custom damage dance
danger date deal debate debt decade decide degree deliver demand depend depth describe design desire detail develop
device differ dinner direct discover discuss disease display distance divide doctor doubt dream drive duty earn earth
edge education effect effort election employ energy engine enjoy enter error escape event evidence example exchange
excuse exist expect expert explain extend extent failure fall fame family fashion fate fault favour fear feature
feel fellow field fight figure fill film finger finish fire floor flow focus fold follow force form fortune freedom
friend front fuel function fund future gain gather general gesture glance glory goal govern grant grass grow growth
guard guess guest guide habit half handle happen harm harvest hate haste head health heart heat height history hold
hope hour human humour hunger hurry idea image impact import improve income increase industry inform injury insist
instance interest invite island issue item join joke journey judge jump justice keep kick kiss knee knowledge labour
lack land language laugh law layer lead learn leave lecture leisure lesson letter lift limit link list listen
load loan logic look loss love luck machine manage manner march mass master match matter measure meeting member memory
mention message method middle mind minute mission mistake mixture model moment money mood morning motion mountain move
music mystery nation nature need neck nerve network night noise note notice notion number object observe obtain ocean
offer opinion order origin owner pace pain pair panel paper parent part party pass patience pattern pause peace
percent period permit phase phrase picture piece pity plan plant pleasure plenty poem poetry point police policy
position possess pour power praise prepare present press prevent pride prince prison prize problem process produce
profit progress promise proof protect provide public pull pupil purpose push quality quarter question race rain raise
range rate reach reason record reduce reform refuse region regret relate relief remain remark remember remove repair
repeat reply report request rescue research respect rest result return reveal review reward rise risk river road role
roof root route rule salary sample scale scene scheme science score search season seat second section seek select
sense sentence series serve shade shadow shape share shelter shift shock shore shoulder shout sight sign silence skill
skin sleep slope smile society soil soldier solution song sort soul sound source space speech speed spell spend spirit
spread spring staff stage standard star state stay steam step stomach stone storm story strain stream street strength
stress stretch strike struggle student study stuff subject success suffer suggest summer supply support surface
surprise survey suspect switch symbol system talent talk target task taste teach team temper theory thought thread
threat throat time title tone tongue topic total touch trade train transfer travel treat trial trick trip trouble trust
truth turn type uncle union unit value variety victory view visit voice volume vote voyage wait walk war warn waste
watch wave weakness wealth weather weight welcome west width wind winter wish witness wonder work worry wound youth
"""
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_HEX = "0123456789abcdef"
_UUID = (8, 4, 4, 4, 12)

_words = WORDS[SPLIT]
_NOUNS = (*_words.objects, *_words.places, *_words.animals, *_words.tokens, *_words.foods)
ADJECTIVES = tuple(dict.fromkeys((*_words.adjectives, *_ADJECTIVES.split())))
NOUNS = tuple(dict.fromkeys(_NOUNS))
PLAIN = tuple(dict.fromkeys((*_PLAIN.split(), *ADJECTIVES, *NOUNS)))
TRAINED = frozenset(word.lower() for field in fields(WORDS["train"]) for word in getattr(WORDS["train"], field.name))
"""Words that no task may hold outside its fixed sentences."""


def adjective_noun(rng: Dice) -> str:
    """Returns a key such as `quiet-lantern`."""
    return f"{rng.pick(ADJECTIVES)}-{rng.pick(NOUNS)}"


def seven_digits(rng: Dice) -> str:
    """Returns a number of seven digits."""
    return str(rng.number(1_000_000, 9_999_999))


def uuid(rng: Dice) -> str:
    """Returns 32 hexadecimal digits in the groups of a UUID."""
    return "-".join("".join(rng.pick(_HEX) for _ in range(count)) for count in _UUID)


def variable(rng: Dice) -> str:
    """Returns a name of five capitals."""
    return "".join(rng.pick(_LETTERS) for _ in range(5))


def coded_word(rng: Dice) -> str:
    """Returns six small letters."""
    return "".join(rng.pick(_LETTERS) for _ in range(6)).lower()


def plain_words(rng: Dice) -> Iterator[str]:
    """Yields plain words in random order, none twice, and invented ones after them."""
    yield from rng.several(PLAIN, len(PLAIN))
    yield from distinct(lambda: invented_name(rng, SPLIT).lower())


def distinct(draw: Callable[[], T]) -> Iterator[T]:
    """Yields draws without end, none twice."""
    seen: set[T] = set()
    while True:
        if (item := draw()) not in seen:
            seen.add(item)
            yield item
