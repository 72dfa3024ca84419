// Certificate checker: decides whether a certificate proves that tables are free of deadlocks and races.  The format and the
// meaning of every field are in amk_core/schedule/certificate.py; nothing of the search is used.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tables.hpp"

namespace amk {

struct CertificateView {
  int64_t unroll, n_tasks, n_queues;
  std::span<const int32_t> replay, row;
  std::span<const int64_t> row_off;
  std::span<const int32_t> row_queue, row_value;
};

// Empty: the certificate holds.  Otherwise what is wrong, at most a few lines.  The hash is the caller's business.
std::vector<std::string> check_certificate(const Tables& tables, const CertificateView& certificate);

}  // namespace amk
