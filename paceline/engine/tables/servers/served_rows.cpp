#include "paceline/engine/tables/servers/served_rows.h"

#include <algorithm>

#include "paceline/engine/core/check.h"
#include "paceline/engine/optim_kernels/kernels.h"
#include "paceline/engine/rpc/pool.h"
#include "paceline/engine/tables/host/row_update.h"

namespace paceline::tables {

namespace {

template <class T>
void append_range(std::vector<T>& to, const std::vector<T>& from, std::uint64_t begin,
                  std::uint64_t count) {
  to.insert(to.end(), from.begin() + static_cast<std::ptrdiff_t>(begin),
            from.begin() + static_cast<std::ptrdiff_t>(begin + count));
}

template <class T>
void append_all(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

OpenRows request_of(const std::string& table, const RowOptions& options) {
  const Settings settings = Settings::of(table, options);
  OpenRows request{.table = table,
                   .width = settings.width,
                   .optimizer = settings.optimizer,
                   .consistency = settings.consistency,
                   .bound = settings.bound,
                   .capacity = settings.capacity,
                   .seed = settings.seed,
                   .candidates = settings.candidates,
                   .expire_after = settings.expire_after,
                   .admit_after = settings.admit_after,
                   .initial_range = settings.initial_range};
  request.optimizer_numbers = {settings.lr};
  append_all(request.optimizer_numbers, std::vector<double>(settings.optimizer_numbers.begin(),
                                                            settings.optimizer_numbers.end()));
  return request;
}

Settings settings_in(const OpenRows& request) {
  check(request.optimizer <= 3 && request.optimizer_numbers.size() == 5 && request.consistency <= 2,
        "open_rows: table '{}': the request was made by another version of Paceline",
        request.table);
  const auto& numbers = request.optimizer_numbers;
  RowOptions options{.width = request.width,
                     .capacity = request.capacity,
                     .initial_range = request.initial_range,
                     .seed = request.seed,
                     .admit_after = request.admit_after,
                     .candidates = request.candidates,
                     .expire_after = request.expire_after};
  switch (request.optimizer) {
    case 0:
      options.optimizer = SGD{numbers[0], numbers[1], numbers[2]};
      break;
    case 1:
      options.optimizer = Adam{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]};
      break;
    case 2:
      options.optimizer = Adagrad{numbers[0], numbers[1], numbers[2]};
      break;
    default:
      options.optimizer = RowAdagrad{numbers[0], numbers[1]};
  }
  if (request.consistency == 0) options.consistency = Consistency::synchronous();
  if (request.consistency == 1) options.consistency = Consistency::bounded(request.bound);
  return Settings::of(request.table, options);
}

namespace {

SharedRowsOptions with_request(SharedRowsOptions host, const OpenRows& request) {
  host.table = request.table;
  host.session = request.session;
  host.new_session = request.new_session;
  host.timeout = std::chrono::milliseconds(request.timeout_ms);
  return host;
}

}  // namespace

ServedRows::ServedRows(MemoryPointer memory, const OpenRows& request, const std::string& worker,
                       SharedRowsOptions host)
    : worker_(worker),
      epoch_(request.epoch),
      server_(request.server),
      num_servers_(request.num_servers),
      rows_(std::move(memory), with_request(std::move(host), request)),
      num_ticks_(request.ticks) {}

void ServedRows::check_owner(const char* operation, std::uint64_t epoch,
                             std::span<const Id> ids) const {
  check(epoch == epoch_,
        "worker {}: {}: table '{}': the request has slot map {}, but this server has slot map {}; "
        "open the table again",
        worker_, operation, rows_.name(), epoch, epoch_);
  for (const Id id : ids) {
    check(std::uint64_t{slot_of(id)} * num_servers_ / kNumSlots == server_,
          "worker {}: {}: table '{}': row {} (slot {}) belongs to another server; no row was "
          "changed",
          worker_, operation, rows_.name(), id, slot_of(id));
  }
}

PulledRows ServedRows::pull(const PullRows& request) {
  check_owner("pull", request.epoch, request.ids);
  PulledRows reply;
  reply.values.resize(request.ids.size() * rows_.width());
  rows_.pull(request.ids, reply.values);
  if (!request.as_bfloat16) return reply;
  reply.bfloat16.resize(reply.values.size());
  optim::narrow(Dtype::kBfloat16, reply.values.data(), reply.bfloat16.data(),
                static_cast<std::int64_t>(reply.values.size()));
  reply.values.clear();
  return reply;
}

rpc::Nothing ServedRows::push(const PushRows& request) {
  check_owner("push", request.epoch, request.ids);
  std::span<const float> gradients = request.gradients;
  if (!request.bfloat16.empty()) {
    gradients_.resize(request.bfloat16.size());
    optim::widen(Dtype::kBfloat16, request.bfloat16.data(), gradients_.data(),
                 static_cast<std::int64_t>(gradients_.size()));
    gradients = gradients_;
  }
  rows_.push(request.ids, gradients, request.sequence);
  return {};
}

rpc::Nothing ServedRows::tick(const TickRows& request) {
  if (request.number <= num_ticks_) return {};
  const rpc::Pool::Blocked blocked;  // other workers' calls must run meanwhile
  rows_.tick();
  num_ticks_ = request.number;
  return {};
}

rpc::Nothing ServedRows::set_lr(const LearningRate& request) {
  rows_.set_lr(request.lr);
  return {};
}

RowsState ServedRows::state(const rpc::Nothing& /*nothing*/) const {
  const Rows::Stats stats = rows_.stats();
  return {.session = rows_.session(),
          .sequence = rows_.sequence(),
          .lr = rows_.lr(),
          .epoch = stats.epoch,
          .rows = stats.rows,
          .clock = stats.clock,
          .pulls = stats.pulls,
          .pulled_ids = stats.pulled_ids,
          .pushed_ids = stats.pushed_ids,
          .pushed_rows = stats.pushed_rows,
          .duplicate_pushes = stats.duplicate_pushes,
          .dropped_gradients = stats.dropped_gradients,
          .torn_reads = stats.torn_reads,
          .expired_rows = stats.expired_rows,
          .largest_staleness = stats.largest_staleness,
          .evicted_workers = stats.evicted_workers,
          .repaired_updates = stats.repaired_updates,
          .mean_staleness = stats.mean_staleness};
}

CutPart ServedRows::cut(const CutRange& range) {
  if (range.is_first) cut_ = rows_.cut();
  check(cut_.has_value(), "worker {}: cut: table '{}': no cut was begun", worker_, rows_.name());
  const std::uint64_t begin = std::min<std::uint64_t>(range.begin, cut_->ids.size());
  const std::uint64_t count = std::min(range.count, cut_->ids.size() - begin);
  CutPart part = part_of(*cut_, begin, count);
  if (part.is_last) cut_.reset();
  return part;
}

rpc::Nothing ServedRows::restore(const CutPart& part) {
  check_owner("restore", epoch_, part.ids);
  if (part.begin == 0) cut_.emplace();
  const std::uint64_t arrived = cut_ ? cut_->ids.size() : 0;
  check(part.begin == arrived,
        "worker {}: restore: table '{}': the part from position {} on arrived after {} ids; call "
        "restore() again",
        worker_, rows_.name(), part.begin, arrived);
  append(*cut_, part);
  if (!part.is_last) return {};
  const TableCut whole = *std::exchange(cut_, std::nullopt);
  rows_.restore(whole);
  return {};
}

CutPart part_of(const TableCut& cut, std::uint64_t begin, std::uint64_t count) {
  CutPart part{.num_ids = cut.ids.size(),
               .is_last = begin + count == cut.ids.size(),
               .width = cut.width,
               .row_floats = cut.row_floats,
               .optimizer = cut.optimizer,
               .seed = cut.seed,
               .now = cut.now,
               .initial_range = cut.initial_range,
               .lr = cut.lr,
               .begin = begin};
  append_range(part.ids, cut.ids, begin, count);
  append_range(part.sightings, cut.sightings, begin, count);
  append_range(part.used, cut.used, begin, count);
  append_range(part.admitted, cut.admitted, begin, count);
  const auto rows_before = static_cast<std::uint64_t>(
      std::count(cut.admitted.begin(), cut.admitted.begin() + static_cast<std::ptrdiff_t>(begin),
                 std::uint8_t{1}));
  const auto rows = static_cast<std::uint64_t>(
      std::count(part.admitted.begin(), part.admitted.end(), std::uint8_t{1}));
  append_range(part.rows, cut.rows, rows_before * cut.row_floats, rows * cut.row_floats);
  if (begin == 0) part.sessions = cut.sessions;
  return part;
}

void append(TableCut& cut, const CutPart& part) {
  cut.width = part.width;
  cut.row_floats = part.row_floats;
  cut.optimizer = part.optimizer;
  cut.seed = part.seed;
  cut.now = part.now;
  cut.initial_range = part.initial_range;
  cut.lr = part.lr;
  append_all(cut.ids, part.ids);
  append_all(cut.sightings, part.sightings);
  append_all(cut.used, part.used);
  append_all(cut.admitted, part.admitted);
  append_all(cut.rows, part.rows);
  append_all(cut.sessions, part.sessions);
}

}  // namespace paceline::tables
