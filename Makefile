# Developer targets.  `make native` builds the extension in place for running from the source tree.
PY ?= python3
.PHONY: native
native:
	cmake -S . -B build/dev -G Ninja -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE=$$($(PY) -c 'import sys;print(sys.executable)') -DCMAKE_LIBRARY_OUTPUT_DIRECTORY=$(CURDIR)/amk_core >/dev/null
	cmake --build build/dev
