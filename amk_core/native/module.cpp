// The one extension module of AMK: every native part registers itself here.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

NB_MODULE(_native, m) { m.doc() = "Native core of AMK: validator, oracle, certificate checker and CPU VM."; }
