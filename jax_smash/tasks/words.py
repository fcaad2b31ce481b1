"""Word lists, each in two disjoint halves: one for training, one for tests."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from zlib import crc32

from jax_smash.tasks.dice import Dice

SPLITS = ("train", "test")

_GIRLS = """
Alma Beth Clara Dora Elsa Fiona Greta Hanna Ida Jenny Kate Lena Maria Nina Olga Paula Quinn Rita Sara Tess Ursula Vera
Wanda Yara Zoe Anna Bella Cora Daisy Emma Flora Gina Heidi Irene Julia Karin Lily Molly Nora Odette Polly Rosa Sofia
Tina Una Vivian Willa Yvonne Zelda Amy Bonnie Celia Diana Eva Freya Gloria Helen Isla Joan Kim Lucy Mia Nelly Olive
Penny Ruth Sally Tara Ulla Violet Winnie Abby Brenda Carol Delia Edith Faith Grace Holly Iris Judy Kira Lola Mabel Naomi
Ottilie Pearl Rhoda Stella Thea Alice Becky Carmen Doris Ellen
"""
_BOYS = """
Adam Ben Carl David Eric Frank George Henry Ivan Jack Karl Leo Max Noah Oscar Peter Ralph Sam Tom Uwe Victor Will Yusuf
Zack Alan Brian Chris Dan Edgar Felix Gary Hugo Isaac James Kevin Luke Mark Nick Otto Paul Robert Simon Tim Ulrich Vince
Walter Yannick Albert Boris Conrad Dennis Ernest Fred Gordon Harry Igor John Kurt Liam Martin Nathan Owen Philip Rupert
Steve Theo Vernon Wayne Anton Bruno Cedric Dylan Edmund Fergus Graham Howard Ian Jacob Keith Lars Miles Neil Oliver
Percy Roger Stuart Toby Wesley Arthur Basil Colin Derek Elmer Floyd
"""
# Each begins with a consonant and makes its plural with an s, so that sentences need no grammar.
_OBJECTS = """
ball drum kite lamp cup spoon basket ribbon button coin pebble shell marble feather lantern hammer bucket blanket pillow
mirror candle bottle pencil crayon puzzle puppet trumpet whistle helmet jacket mitten sock boot sandal ticket rope
ladder wheel magnet clock vase bowl plate kettle jar teapot saucer napkin towel comb sponge rug carpet cushion mug fork
tray cart wagon sled tent flag banner medal crown ring necklace bracelet locket hat cap glove shoe belt purse backpack
suitcase notebook postcard stamp sticker poster painting token domino bead doll robot truck rocket raft paddle net hook
jug flask thimble needle bobbin zipper
"""
_PLACES = """
kitchen garden bedroom hallway office bathroom cellar attic garage library bakery market harbour stable barn meadow
orchard forest park school museum theatre station castle tower cave mill zoo church hospital workshop greenhouse shed
pantry laundry studio cabin courtyard temple tavern shipyard lighthouse vineyard quarry swamp desert canyon village
palace hotel cafe gym lobby nursery parlour lounge dungeon chapel factory warehouse
"""
_ANIMALS = """
dog cat rabbit fox bear duck frog mouse pig goat sheep horse cow hen goose turtle squirrel hedgehog badger beaver deer
mole lizard snail beetle butterfly bee spider parrot sparrow pigeon raven swan stork pelican penguin seal whale dolphin
crab lobster kitten puppy pony donkey camel lion tiger zebra giraffe monkey panda hamster gerbil lamb calf toad newt
peacock rooster
"""
_ADJECTIVES = """
red blue green yellow brown black white pink purple grey golden silver big small tiny huge tall soft shiny round wooden
heavy clean dusty pretty smooth rusty cosy fancy funny lucky striped spotted plastic velvet woolly crooked sturdy
shabby broken square flat bumpy stripy fluffy sparkling muddy noisy
"""
_FOODS = """
bread soup cheese rice pasta porridge honey butter jam cake pie pudding salad stew pizza toast milk tea juice cocoa
lemonade yoghurt custard chicken fish beans peas corn carrots potatoes tomatoes pumpkin spinach cabbage mushrooms pears
plums peaches cherries grapes berries lemons melon nuts raisins cinnamon ginger pepper
"""
_TOKENS = """
amber jade ruby opal coral quartz onyx topaz garnet slate granite copper bronze iron steel nickel zinc cobalt chrome
maple cedar birch willow poplar spruce elm hazelnut fern moss clover thistle nettle tulip orchid lotus lilac comet
planet meteor orbit nova galaxy eclipse thunder breeze frost hail mist drizzle tornado alpha beta gamma delta sigma
omega piano violin cello guitar flute banjo harp organ saffron paprika vanilla pepperoni dragon phoenix griffin
unicorn kraken wizard goblin knight pirate sailor baker miller tailor cobbler farmer hunter jester pilot glider
balloon tractor tram ferry canoe kayak scooter anchor compass rudder turret drawbridge moat gargoyle tundra
prairie glacier volcano lagoon fjord mesa dune geyser savanna jungle cactus bamboo papyrus parchment vellum inkwell
quill abacus sundial hourglass prism lens beacon signal cipher riddle rhyme sonnet ballad anthem waltz polka tango
samba rumba walnut acorn pinecone chestnut almond cashew pistachio mango papaya guava lychee fig date apricot nectarine
"""


@dataclass(frozen=True)
class Words:
    """The words that one split may use; those of `train` and `test` share none, in any of the lists."""

    girls: tuple[str, ...]
    boys: tuple[str, ...]
    objects: tuple[str, ...]
    places: tuple[str, ...]
    animals: tuple[str, ...]
    adjectives: tuple[str, ...]
    foods: tuple[str, ...]
    tokens: tuple[str, ...]

    @property
    def people(self) -> tuple[str, ...]:
        return self.girls + self.boys


def _share(text: str, split: str) -> tuple[str, ...]:
    """Returns every third word for tests, the others for training."""
    words = text.split()
    return tuple(word for i, word in enumerate(words) if (i % 3 == 2) == (split == "test"))


def _words(split: str) -> Words:
    lists = (_GIRLS, _BOYS, _OBJECTS, _PLACES, _ANIMALS, _ADJECTIVES, _FOODS, _TOKENS)
    return Words(*(_share(text, split) for text in lists))


WORDS: dict[str, Words] = {split: _words(split) for split in SPLITS}


_TEST_WORDS = {word.lower() for field in fields(WORDS["test"]) for word in getattr(WORDS["test"], field.name)}


def belongs(split: str, text: str) -> bool:
    """Says whether a text that any split could spell, such as a number, is this split's: a quarter is the test's."""
    return (crc32(text.encode()) % 4 == 0) == (split == "test")


def draw_owned(split: str, draw: Callable[[], str]) -> str:
    """Returns the first draw that is this split's own."""
    while not belongs(split, text := draw()):
        pass
    return text


# Names are made of a first, up to two middle and one last syllable. No last syllable of one split ends in one of the
# other's, so no name can be made twice.
_FIRST = {
    "train": """Bel Cor Dal Fen Gor Hul Jor Kel Lor Mor Nar Pel Quo Ror Sel Tor Vel Wen Xan Yor Zel Bran Cral Drel Fral
        Gren Kres Plo Stra Thal Vren Bri Dru Flo Gla Kno Mi Nu Ori Sha Tri Vo Zu Lum Ash Ela Uri Ive Oma Aru""",
    "test": """Bax Ced Dof Fib Gid Hob Jed Kov Lud Mog Nif Pob Quib Rud Sib Tuf Vad Wob Xed Yud Zob Brud Clov Drob Frib
        Grof Krad Plud Stib Throf Vlad Bu Dwe Fle Gwi Kle Mu Ne Oba Shu Tru Vi Zy Lod Eb Ulu Iga Ebo Afo Udo""",
}
_MIDDLE = {
    "train": "a i la ri mo ne ta lo ve sa ro mi le ka no ra li te su va",
    "test": "e u bi do fu ga pe ju ke bo du fe go pi ze wo ki bu de fo",
}
_LAST = {
    "train": """dor vane mere lin thas rok nesh quay burn moor wick ther gard stan mont ria lis nor vale holm tirn kesh
        dell rath zan wyn mar lore ness tor""",
    "test": """bey dux fip gost hef jib kum lop mux nip pesh rud sog tab vek wud yap zed crof drup flib glum pruk skef
        twib bock dast fudge hask pood""",
}
_FIRST_SYLLABLES, _MIDDLE_SYLLABLES, _LAST_SYLLABLES = (
    {split: tuple(text.split()) for split, text in part.items()} for part in (_FIRST, _MIDDLE, _LAST)
)
_LENGTHS = (2, 2, 2, 2, 3, 3, 3, 4)


def invented_name(rng: Dice, split: str, avoid: tuple[str, ...] = ()) -> str:
    """Returns a capitalised name of two to four syllables that the other split cannot make."""
    while True:
        middle = [rng.pick(_MIDDLE_SYLLABLES[split]) for _ in range(rng.pick(_LENGTHS) - 2)]
        name = "".join((rng.pick(_FIRST_SYLLABLES[split]), *middle, rng.pick(_LAST_SYLLABLES[split])))
        if name not in avoid:
            return name


_ONSETS = """
b bl br c ch cl cr d dr f fl fr g gl gr h j k kl kn kr l m n p ph pl pr qu r s sc sh sk sl sm sn sp st str sw t th tr tw
v vl w wh y z
"""
_VOWELS = "a e i o u a e i o u a e i o u y ai au ea ee ie io oa oo ou ua"
_CODAS = "b ck d f g k l ll lt m mp n nd ng nk nt p r rd rk rl rm rn rt s sh sk ss st t th x z"
_SOUNDS = ((*[""] * 6, *_ONSETS.split()), _VOWELS.split(), (*[""] * 16, *_CODAS.split()))
"""What a syllable of any name is made of; the empty ones stand for syllables without."""
_SYLLABLES = (1, 2, 2, 2, 3, 3)
_SHORTEST, _LONGEST = 3, 12


def any_name(rng: Dice) -> str:
    """Returns a capitalised name of almost any letters, to train on; the test split's invented names and words are not.

    One in five is an `invented_name` of the training split.
    """
    if rng.random() < 0.2:
        return invented_name(rng, "train")
    while True:
        name = "".join(rng.pick(part) for _ in range(rng.pick(_SYLLABLES)) for part in _SOUNDS)
        if (
            _SHORTEST <= len(name) <= _LONGEST
            and not name.endswith(_LAST_SYLLABLES["test"])
            and name not in _TEST_WORDS
        ):
            return name.capitalize()
