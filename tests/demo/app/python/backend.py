"""A build backend that needs nothing installed, so that pip builds this package without a network."""

import os
import zipfile

INFO = "greet-1.0.dist-info"
FILES = {
    f"{INFO}/METADATA": "Metadata-Version: 2.1\nName: greet\nVersion: 1.0\n",
    f"{INFO}/WHEEL": "Wheel-Version: 1.0\nGenerator: backend\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    f"{INFO}/entry_points.txt": "[console_scripts]\ngreet = greet:main\n",
}


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    name = "greet-1.0-py3-none-any.whl"
    with open("greet.py", encoding="utf-8") as source:
        files = {"greet.py": source.read(), **FILES}
    files[f"{INFO}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{INFO}/RECORD"])
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    return name
