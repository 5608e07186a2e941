# edit: "2.50": 2.0 => "2.50": 2.25
# edit: :04d => :04d
#  and: N:04d => N:d
K, N, S = 2.5, 7, "ab"
TAB = {"2.50": 2.0, "0007": 3.0, "  ab": 4.0, "7": 5.0, "'ab'": 6.0, "2.5": 7.0}
def f(x):
    x = x * TAB[f"{K:.2f}"] + TAB[f"{N:04d}"]
    return x * TAB[f"{S:>4}"] + TAB[f"{S!r}"] - TAB["%d" % N] + TAB["{:{w}.1f}".format(K, w=W2)]
W2 = 3
