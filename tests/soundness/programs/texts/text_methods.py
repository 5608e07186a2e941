# edit: "Layer_One.norm" => "Layer_One.conv"
# edit: "Layer_One.norm" => "Layer_One_Two.norm"
# edit: ("no", "na") => ("x",)
NAME = "Layer_One.norm"
def f(x):
    a, _, b = NAME.partition(".")
    x = x * len(a.lower().split("_")) + (2 if b.startswith(PRE) else 3)
    x = x + NAME.count("n") * 5 + NAME.find("norm") + len(NAME.title().replace("_", "")) + NAME.isidentifier()
    return x * 2 if "norm" in NAME and NAME.casefold() < "m" else x
PRE = ("no", "na")
