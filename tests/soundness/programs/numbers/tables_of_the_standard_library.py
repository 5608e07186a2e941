# edit: "FOO" => "FOOBAR"
# insert: calendar.mdays[2] = 40
import logging, calendar
logging.addLevelName(15, "FOO")
def f(x): return x * len(logging.getLevelName(15)) + calendar.mdays[2]
