import shutil
from pathlib import Path

def install(version, source):
    folder = Path("site-packages").absolute()
    shutil.rmtree(folder, ignore_errors=True)
    (folder / f"installed-{version}.dist-info").mkdir(parents=True)
    (folder / f"installed-{version}.dist-info/METADATA").write_text(f"Name: installed\nVersion: {version}\n")
    (folder / "installed.py").write_text(source)
    sys.path.append(str(folder))

