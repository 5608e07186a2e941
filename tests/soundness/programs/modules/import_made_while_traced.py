# edit: import wsgiref as w\ndef => import wsgiref as w, wsgiref.headers\ndef
import wsgiref as w
def f(x):
    y = x * 2 if hasattr(w, "headers") else x * 3
    import wsgiref.headers as h
    return y
