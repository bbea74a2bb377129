#include "control.h"

#include <limits>

#include "raw.h"

namespace piper {
namespace {

constexpr const char* kNames[] = {"loss", "grad_norm", "learning_rate", "skipped", "loss_scale"};
constexpr int32_t kReportChannel = kOwnChannels;
constexpr int32_t kGoChannel = kReportChannel + 1;
constexpr int32_t kFactsChannel = kReportChannel + 4;
constexpr int32_t kGatherChannel = kReportChannel + 5;

struct Facts {
  int64_t reports = 0;  // bit k: kNames[k]
  int64_t peak_bytes = 0;
  int64_t cuts_dims = 0;
};

// Everyone's facts, by way of rank 0: a group would make some transports allocate for sums.
Result<std::vector<Facts>> exchange(Transport& transport, Facts own) {
  std::vector<Facts> facts(static_cast<size_t>(transport.world()));
  int64_t bytes = static_cast<int64_t>(facts.size() * sizeof(Facts));
  if (transport.rank() != 0) {
    PIPER_ASSIGN(int32_t to, transport.add_send(0, kFactsChannel, 1));
    PIPER_ASSIGN(int32_t from, transport.add_recv(0, kFactsChannel));
    PIPER_TRY(transport.send(to, raw(&own), sizeof(Facts)));
    PIPER_TRY(transport.recv(from, raw(facts.data()), bytes));
  } else {
    facts[0] = own;
    for (int64_t i = 1; i < transport.world(); ++i) {
      PIPER_ASSIGN(int32_t from, transport.add_recv(i, kFactsChannel));
      PIPER_TRY(transport.recv(from, raw(&facts[static_cast<size_t>(i)]), sizeof(Facts)));
    }
    for (int64_t i = 1; i < transport.world(); ++i) {
      PIPER_ASSIGN(int32_t to, transport.add_send(i, kFactsChannel, 1));
      PIPER_TRY(transport.send(to, raw(facts.data()), bytes));
    }
  }
  PIPER_TRY(transport.wait_sends());
  return facts;
}

bool reports(const RoleProgram& role, std::string_view name) {
  for (const Report& report : role.reports) {
    if (report.name == name) return true;
  }
  return false;
}

}  // namespace

Result<Control> Control::open(Transport& transport, const Executor& executor) {
  Control control;
  control.transport_ = &transport;
  int64_t world = transport.world();
  Facts own;
  own.peak_bytes = executor.role().peak_bytes();
  own.cuts_dims = cuts_dims(executor.role()) ? 1 : 0;
  for (int k = 0; k < kValues; ++k) {
    if (reports(executor.role(), kNames[k])) own.reports |= int64_t{1} << k;
  }
  PIPER_ASSIGN(std::vector<Facts> facts, exchange(transport, own));
  std::vector<bool> speaks(static_cast<size_t>(world));
  for (int k = 0; k < kValues; ++k) {
    control.source_[k] = -1;
    for (int64_t i = world - 1; i >= 0; --i) {
      if ((facts[static_cast<size_t>(i)].reports >> k & 1) != 0) control.source_[k] = i;
    }
    if (control.source_[k] >= 0) speaks[static_cast<size_t>(control.source_[k])] = true;
  }
  for (const Facts& one : facts) {
    control.peak_bytes_ = std::max(control.peak_bytes_, one.peak_bytes);
    control.dims_are_cut_ = control.dims_are_cut_ || one.cuts_dims != 0;
  }
  if (transport.rank() != 0) {
    PIPER_ASSIGN(int32_t go, transport.add_recv(0, kGoChannel));
    control.go_ = {go};
    PIPER_ASSIGN(int32_t gather, transport.add_send(0, kGatherChannel, 1));
    control.gather_ = {gather};
    if (speaks[static_cast<size_t>(transport.rank())]) {
      PIPER_ASSIGN(control.to_zero_, transport.add_send(0, kReportChannel, 1));
    }
    return control;
  }
  for (int64_t i = 1; i < world; ++i) {
    PIPER_ASSIGN(int32_t go, transport.add_send(i, kGoChannel, 1));
    control.go_.push_back(go);
    PIPER_ASSIGN(int32_t gather, transport.add_recv(i, kGatherChannel));
    control.gather_.push_back(gather);
    if (!speaks[static_cast<size_t>(i)]) continue;
    PIPER_ASSIGN(int32_t route, transport.add_recv(i, kReportChannel));
    control.from_.emplace_back(i, route);
  }
  return control;
}

Status Control::collect(const Executor& executor, StepMetrics& metrics) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  double own[kValues];
  for (int k = 0; k < kValues; ++k) own[k] = executor.report(kNames[k]).value_or(kNone);
  if (to_zero_ >= 0) {
    PIPER_TRY(transport_->send(to_zero_, raw(own), sizeof own));
    return transport_->wait_sends();
  }
  if (transport_->rank() != 0) return ok_status();
  std::optional<double>* targets[] = {&metrics.loss, &metrics.grad_norm, &metrics.learning_rate,
                                      &metrics.skipped, &metrics.loss_scale};
  auto take = [&](int64_t rank, const double* values) {
    for (int k = 0; k < kValues; ++k) {
      if (source_[k] == rank) *targets[k] = values[k];
    }
  };
  take(0, own);
  for (auto [rank, route] : from_) {
    double values[kValues];
    PIPER_TRY(transport_->recv(route, raw(values), sizeof values));
    take(rank, values);
  }
  return ok_status();
}

Status Control::gather(std::span<const uint64_t> own, std::vector<std::vector<uint64_t>>& by_rank) {
  int64_t bytes = static_cast<int64_t>(own.size_bytes());
  if (transport_->rank() != 0) {
    PIPER_TRY(transport_->send(gather_[0], reinterpret_cast<const std::byte*>(own.data()), bytes));
    return transport_->wait_sends();
  }
  by_rank.emplace_back(own.begin(), own.end());
  for (int32_t route : gather_) {
    by_rank.emplace_back(own.size());
    PIPER_TRY(transport_->recv(route, raw(by_rank.back().data()), bytes));
  }
  return ok_status();
}

Status Control::spread_late(bool& stop, bool first, bool last) {
  const bool now = stop;
  if (transport_->rank() != 0 && !first) PIPER_TRY(transport_->recv(go_[0], raw(&said_), 1));
  stop = !first && said_ != 0;
  if (transport_->rank() != 0 || last) return ok_status();
  // It has been received when the step ends that began after it: the plan waits for all sends.
  said_ = now ? 1 : 0;
  for (int32_t route : go_) PIPER_TRY(transport_->send(route, raw(&said_), 1));
  return ok_status();
}

Status Control::spread(bool& stop) {
  char flag = stop ? 1 : 0;
  if (transport_->rank() != 0) {
    PIPER_TRY(transport_->recv(go_[0], raw(&flag), 1));
    stop = flag != 0;
    return ok_status();
  }
  for (int32_t route : go_) PIPER_TRY(transport_->send(route, raw(&flag), 1));
  return transport_->wait_sends();
}

}  // namespace piper
