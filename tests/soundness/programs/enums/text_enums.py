# edit: Mode("fast") => Mode("slow")
# edit: Mode.SLOW: 3.0 => Mode.SLOW: 4.0
# edit: FAST = "fast" => FAST = "faster"
#  and: Mode("fast") => Mode("faster")
#  and: "fast": 2.0 => "faster": 2.0
import enum
class Mode(str, enum.Enum):
    FAST = "fast"
    SLOW = "slow"
mode = Mode("fast")
TAB = {"fast": 2.0, Mode.SLOW: 3.0}
def f(x): return x * TAB[mode.value] + (5 if mode == "fast" else 7) + TAB["slow"] + len(mode)
