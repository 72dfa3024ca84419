// Python binding of the validator.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <memory>

#include "validate.hpp"

namespace amk {
void bind_validate(nanobind::module_& m);
}

namespace nb = nanobind;

namespace amk::validate {
namespace {

template <class T>
nb::object array(std::vector<T> values) {
  auto* owned = new std::vector<T>(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(owned->data(), {owned->size()}, owner));
}

nb::dict validate(nb::bytes data, bool certificate) {
  std::vector<uint64_t> copy;
  const std::string_view view = aligned({data.c_str(), data.size()}, copy);
  std::unique_ptr<Verdict> v;
  Sparse s;
  {
    nb::gil_scoped_release release;
    const Tables t(view);
    v = std::make_unique<Verdict>(decide(t));
    if (v->accepted && certificate) s = sparse(v->clocks);
  }
  nb::dict out;
  out["accepted"] = v->accepted;
  nb::list findings;
  for (size_t k = 0; k < v->report.findings.size(); ++k) {
    const Finding& f = v->report.findings[k];
    nb::dict d;
    d["rule"] = kRuleNames[f.rule], d["what"] = f.what, d["undecided"] = f.undecided;
    d["a"] = f.task_a, d["b"] = f.task_b, d["step_a"] = f.step_a, d["step_b"] = f.step_b;
    d["buffer"] = f.buffer, d["lo"] = f.lo, d["hi"] = f.hi;
    d["counter"] = f.counter, d["need"] = f.need, d["have"] = f.have;
    nb::list chain;
    for (i64 x : f.chain) chain.append(x);
    d["chain"] = chain;
    for (const auto& [at, done] : v->witness)
      if (at == k) {
        nb::list completed;
        for (i64 x : done) completed.append(x);
        d["completed"] = completed;
      }
    findings.append(d);
  }
  out["findings"] = findings;
  nb::dict counts;
  for (int r = 0; r < kRules; ++r)
    if (v->report.count[r]) counts[kRuleNames[r]] = v->report.count[r];
  out["counts"] = counts;
  if (v->accepted && certificate) {
    out["unroll"] = v->clocks.unroll;
    out["replay"] = array(std::move(v->run.order));
    out["row"] = array(std::move(s.row));
    out["row_off"] = array(std::move(s.off));
    out["row_queue"] = array(std::move(s.queue));
    out["row_value"] = array(std::move(s.value));
  }
  return out;
}

}  // namespace
}  // namespace amk::validate

void amk::bind_validate(nb::module_& m) {
  m.def("validate", &amk::validate::validate, nb::arg("tables"), nb::arg("certificate") = true,
        "Decide the packed tables of a schedule.  Returns a dict: accepted, findings, counts and, when accepted, the certificate columns.");
}
