// The one extension module of AMK: every native part registers itself here.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace amk {
void bind_bandwidth(nb::module_& m);
void bind_checker(nb::module_& m);
void bind_oracle(nb::module_& m);
void bind_vm(nb::module_& m);
void bind_validate(nb::module_& m);
}  // namespace amk

NB_MODULE(_native, m) {
  m.doc() = "Native core of AMK: validator, oracle, certificate checker, CPU VM and memory probe.";
  amk::bind_bandwidth(m);
  amk::bind_checker(m);
  amk::bind_oracle(m);
  amk::bind_vm(m);
  amk::bind_validate(m);
}
