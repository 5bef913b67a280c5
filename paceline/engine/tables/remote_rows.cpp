#include "paceline/engine/tables/remote_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <random>

#include "paceline/engine/core/check.h"
#include "paceline/engine/optim_kernels/kernels.h"
#include "paceline/engine/tables/row_checks.h"

namespace paceline::tables {

namespace {

constexpr std::chrono::seconds kAnswerTime(10);  // beyond the wait of the server

}  // namespace

// Calls all servers before it waits for any. Every server is waited for, even if one fails.
template <class Call>
void RemoteRows::on_all_servers(Call call) const {
  std::vector<decltype(call(servers_[0], std::size_t{0}))> futures;
  for (std::size_t i = 0; i < servers_.size(); ++i) futures.push_back(call(servers_[i], i));
  std::exception_ptr first;
  for (auto& future : futures) {
    try {
      future.get();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

RemoteRows::RemoteRows(rpc::Workers& workers, const std::string& table, const RowOptions& options,
                       SlotMap map, const RemoteRowsOptions& remote)
    : worker_(workers.name()),
      table_(table),
      width_(options.width),
      map_(std::move(map)),
      options_(remote) {
  OpenRows request = request_of(table, options);
  request.timeout_ms = options_.timeout.count();
  request.epoch = map_.epoch;
  request.num_servers = static_cast<std::uint32_t>(map_.servers.size());
  // The session has the same number on all servers.
  std::random_device random;
  session_ = options_.session.value_or(std::uint64_t{random()} << 32 | random() | 1);
  (options_.session ? request.session : request.new_session) = session_;
  for (const std::string& server : map_.servers) {
    servers_.push_back(workers.create<ServedRows>(server, request, call_options()));
    ++request.server;
  }
  sequence_ = RemoteRows::sequence();  // and an error of a constructor appears
}

rpc::CallOptions RemoteRows::call_options() const {
  return {.deadline = options_.timeout + kAnswerTime};
}

RowsState RemoteRows::state_of(std::size_t server) const {
  return servers_[server].call<&ServedRows::state>({}, call_options()).get();
}

void RemoteRows::check_open(const char* operation) const {
  check(!has_left_, "worker {}: {}: this worker has left table '{}'", worker_, operation, table_);
}

std::vector<RemoteRows::Share> RemoteRows::divide(const RowBatch& batch) const {
  std::vector<Share> shares(map_.servers.size());
  for (std::size_t i = 0; i < batch.size(); ++i) {
    Share& share = shares[map_.owner(batch.id(i))];
    share.ids.push_back(batch.id(i));
    share.places.push_back(i);
  }
  return shares;
}

void RemoteRows::pull(std::span<const Id> ids, std::span<float> values) {
  check_open("pull");
  check_size({worker_, "pull", table_, width_}, ids.size(), values.size());
  RowBatch batch;
  batch.assign(ids);
  std::vector<Share> shares = divide(batch);
  std::vector<std::optional<rpc::Future<PulledRows>>> futures(shares.size());
  for (std::size_t s = 0; s < shares.size(); ++s) {
    if (shares[s].ids.empty()) continue;
    futures[s] = servers_[s].call<&ServedRows::pull>(
        {.epoch = map_.epoch, .as_bfloat16 = options_.as_bfloat16, .ids = shares[s].ids},
        call_options());
  }
  std::vector<float> distinct(batch.size() * width_);
  for (std::size_t s = 0; s < shares.size(); ++s) {
    if (!futures[s]) continue;
    PulledRows reply = futures[s]->get();
    if (options_.as_bfloat16) {
      reply.values.resize(reply.bfloat16.size());
      optim::widen(Dtype::kBfloat16, reply.bfloat16.data(), reply.values.data(),
                   static_cast<std::int64_t>(reply.values.size()));
    }
    check(reply.values.size() == shares[s].ids.size() * width_,
          "worker {}: pull: table '{}': server {} sent {} floats", worker_, table_, map_.servers[s],
          reply.values.size());
    for (std::size_t i = 0; i < shares[s].places.size(); ++i)
      std::memcpy(distinct.data() + shares[s].places[i] * width_, reply.values.data() + i * width_,
                  width_ * sizeof(float));
  }
  for (std::size_t place = 0; place < ids.size(); ++place)
    std::memcpy(values.data() + place * width_, distinct.data() + batch.index_of(place) * width_,
                width_ * sizeof(float));
}

void RemoteRows::push(std::span<const Id> ids, std::span<const float> gradients,
                      const PushOptions& options) {
  check_open("push");
  check(options.sequence != 0, "worker {}: push: table '{}': pushes are numbered from 1", worker_,
        table_);
  const BatchUse use{worker_, "push", table_, width_};
  check_size(use, ids.size(), gradients.size());
  check_finite(use, ids, gradients);
  if (ids.empty()) return;
  const std::lock_guard lock(pushing_);
  RowBatch batch;
  batch.assign(ids);
  // A push that has not reached all servers continues if it is repeated: those that have applied it
  // change nothing.
  const bool continues = unfinished_digest_ == batch.digest();
  sequence_ = options.sequence.value_or(continues ? sequence_ : sequence_ + 1);
  unfinished_digest_ = batch.digest();
  std::vector<Share> shares = divide(batch);
  std::vector<std::optional<rpc::Future<rpc::Nothing>>> futures(shares.size());
  std::vector<float> sum;
  for (std::size_t s = 0; s < shares.size(); ++s) {
    Share& share = shares[s];
    if (share.ids.empty()) continue;
    share.gradients.resize(share.ids.size() * width_);
    for (std::size_t i = 0; i < share.places.size(); ++i)
      std::memcpy(share.gradients.data() + i * width_,
                  batch.gradient(share.places[i], gradients, width_, sum), width_ * sizeof(float));
    PushRows request{.epoch = map_.epoch, .sequence = sequence_, .ids = share.ids};
    if (options_.as_bfloat16) {
      share.bfloat16.resize(share.gradients.size());
      optim::narrow(Dtype::kBfloat16, share.gradients.data(), share.bfloat16.data(),
                    static_cast<std::int64_t>(share.gradients.size()));
      request.bfloat16 = share.bfloat16;
    } else {
      request.gradients = share.gradients;
    }
    futures[s] = servers_[s].call<&ServedRows::push>(request, call_options());
  }
  std::exception_ptr first;
  for (auto& future : futures) {
    try {
      if (future) future->get();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
  unfinished_digest_ = 0;
}

void RemoteRows::tick() {
  check_open("tick");
  const std::lock_guard lock(pushing_);
  on_all_servers([&](const Ref& server, std::size_t) {
    return server.call<&ServedRows::tick>({num_ticks_ + 1}, call_options());
  });
  ++num_ticks_;
}

void RemoteRows::set_lr(double lr) {
  check_open("set_lr");
  check(std::isfinite(lr), "worker {}: table '{}': the learning rate {} is not finite", worker_,
        table_, lr);
  on_all_servers([&](const Ref& server, std::size_t) {
    return server.call<&ServedRows::set_lr>({lr}, call_options());
  });
}

std::uint64_t RemoteRows::sequence() const {
  std::uint64_t sequence = 0;
  for (std::size_t s = 0; s < servers_.size(); ++s)
    sequence = std::max(sequence, state_of(s).sequence);
  return sequence;
}

TableStats RemoteRows::stats() const {
  TableStats all;
  for (std::size_t s = 0; s < servers_.size(); ++s) {
    const RowsState one = state_of(s);
    all.epoch = map_.epoch;
    all.rows += one.rows;
    all.clock = s == 0 ? one.clock : std::min(all.clock, one.clock);
    all.pulls += one.pulls;
    all.pulled_ids += one.pulled_ids;
    all.pushed_ids += one.pushed_ids;
    all.pushed_rows += one.pushed_rows;
    all.duplicate_pushes += one.duplicate_pushes;
    all.dropped_gradients += one.dropped_gradients;
    all.expired_rows += one.expired_rows;
    all.largest_staleness = std::max(all.largest_staleness, one.largest_staleness);
    all.mean_staleness += one.mean_staleness / static_cast<double>(servers_.size());
    all.evicted_workers += one.evicted_workers;
    all.repaired_updates += one.repaired_updates;
  }
  return all;
}

TableCut RemoteRows::cut() {
  check_open("cut");
  const std::lock_guard lock(pushing_);
  std::vector<TableCut> parts;
  for (const Ref& server : servers_) {
    TableCut one;
    for (bool is_last = false, is_first = true; !is_last; is_first = false) {
      const std::uint64_t count = kCutPartBytes / (width_ * sizeof(float) * 3 + 64) + 1;
      const CutPart part =
          server
              .call<&ServedRows::cut>(
                  {.is_first = is_first, .begin = one.ids.size(), .count = count}, call_options())
              .get();
      append(one, part);
      is_last = part.is_last;
    }
    parts.push_back(std::move(one));
  }
  return merge(parts);
}

void RemoteRows::restore(const TableCut& cut) {
  check_open("restore");
  const std::lock_guard lock(pushing_);
  for (std::size_t s = 0; s < servers_.size(); ++s) {
    TableCut share = select(cut, [&](Id id) { return map_.owner(id) == s; });
    const std::uint64_t count = kCutPartBytes / (cut.row_floats * sizeof(float) + 64) + 1;
    std::uint64_t begin = 0;
    do {
      const std::uint64_t some = std::min<std::uint64_t>(count, share.ids.size() - begin);
      servers_[s].call<&ServedRows::restore>(part_of(share, begin, some), call_options()).get();
      begin += some;
    } while (begin < share.ids.size());
  }
}

void RemoteRows::leave() {
  has_left_ = true;
  servers_.clear();
}

}  // namespace paceline::tables
