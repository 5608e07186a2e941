# edit: plug.K = 2.0 => plug.K = 3.0
plug = types.ModuleType("nbcache_plug5")
sys.modules["nbcache_plug5"] = plug
plug.K = 2.0
def f(x):
    import nbcache_plug5 as p
    from nbcache_plug5 import K
    return x * p.K + K
