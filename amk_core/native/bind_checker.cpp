// Python binding of the certificate checker.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "checker.hpp"

namespace nb = nanobind;

namespace amk {
namespace {

using I32Array = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using I64Array = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::vector<std::string> check(nb::bytes tables, int64_t unroll, int64_t n_tasks, int64_t n_queues, I32Array replay, I32Array row,
                               I64Array row_off, I32Array row_queue, I32Array row_value) {
  auto span = [](const auto& a) { return std::span(a.data(), a.size()); };
  const CertificateView view{unroll, n_tasks, n_queues, span(replay), span(row), span(row_off), span(row_queue), span(row_value)};
  std::vector<uint64_t> copy;
  const std::string_view raw = aligned({tables.c_str(), tables.size()}, copy);
  nb::gil_scoped_release release;
  try {
    return check_certificate(Tables(raw), view);
  } catch (const TableError& e) {
    return {e.what()};
  }
}

}  // namespace

void bind_checker(nb::module_& m) {
  m.def("check_certificate", &check, nb::arg("tables"), nb::arg("unroll"), nb::arg("n_tasks"), nb::arg("n_queues"), nb::arg("replay"),
        nb::arg("row"), nb::arg("row_off"), nb::arg("row_queue"), nb::arg("row_value"),
        "What is wrong with a certificate (see amk_core.schedule.certificate); the hash is checked in Python.");
}

}  // namespace amk
