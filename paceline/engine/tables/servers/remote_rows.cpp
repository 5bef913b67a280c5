#include "paceline/engine/tables/servers/remote_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <numeric>
#include <random>
#include <set>
#include <sstream>

#include "paceline/engine/core/check.h"
#include "paceline/engine/optim_kernels/kernels.h"
#include "paceline/engine/tables/host/cutting.h"
#include "paceline/engine/tables/host/row_update.h"
#include "paceline/engine/tables/host/table_layout.h"
#include "paceline/engine/tables/row_batch.h"
#include "paceline/engine/tables/servers/row_server.h"

namespace paceline::tables {

namespace {

constexpr std::chrono::seconds kAnswerTime(10);   // added to the time that the server may wait
constexpr std::chrono::milliseconds kCheck(200);  // between checks for the loss of a silent server

// "EPOCH\nserver0\nserver1": names have no control characters.
std::string text_of(const SlotMap& map) {
  return fmt::format("{}\n{}", map.epoch, fmt::join(map.servers, "\n"));
}

SlotMap parse(const std::string& text) {
  std::istringstream lines(text);
  SlotMap map;
  std::string line;
  std::getline(lines, line);
  map.epoch = std::strtoull(line.c_str(), nullptr, 10);
  while (std::getline(lines, line)) map.servers.push_back(line);
  return map;
}

}  // namespace

// Waits for a reply. A call to a frozen server would last until its deadline, so this throws
// CallError earlier, if the server is lost and its backup can take over.
template <class Value>
Value RemoteRows::value_of(rpc::Future<Value> future, const std::string& server) const {
  while (!future.wait_for(kCheck)) {
    if (!workers_.wait_until_gone(server, std::chrono::milliseconds(0)) ||
        consistency_.kind() == Consistency::Kind::kSynchronous ||
        backup_of(*workers_.store(), server).empty())
      continue;
    throw rpc::CallError(
        ErrorCode::kPeerLost, rpc::CallError::Executed::kUnknown, server, "tables.rows",
        fmt::format("worker {}: table '{}': server {} is lost", worker_, table_, server));
  }
  return future.get();
}

// Makes a call; repeats it at the backup if the server is lost. `call(server)` returns a future.
template <class Call>
auto RemoteRows::call_server(std::size_t part, Call call) const {
  for (;;) {
    const Ref server = server_of(part);
    try {
      return value_of(call(server), server.owner());
    } catch (const rpc::CallError& error) {
      if (!move_part(part, server.owner(), error)) throw;
    }
  }
}

// Sends the calls to the servers of all `parts`, then waits for the replies. `call(server, part)`
// returns a future; its value is passed to `use(part, value)`. If a server is lost, the call to it
// is repeated at its backup. The function waits for every server, even if one of them fails.
template <class Call, class Use>
void RemoteRows::on_servers(const std::vector<std::size_t>& parts, Call call, Use use) const {
  std::vector<Ref> servers;
  std::vector<std::optional<decltype(call(server_of(0), std::size_t{0}))>> futures;
  for (const std::size_t part : parts) {
    servers.push_back(server_of(part));
    futures.emplace_back();
    try {
      futures.back() = call(servers.back(), part);
    } catch (const rpc::CallError&) {
      // The reference is no longer valid, often because the server is lost; called again below.
    }
  }
  std::exception_ptr first;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const auto call_again = [&] {
      use(parts[i],
          call_server(parts[i], [&](const Ref& server) { return call(server, parts[i]); }));
    };
    try {
      if (!futures[i]) {
        call_again();
        continue;
      }
      try {
        use(parts[i], value_of(std::move(*futures[i]), servers[i].owner()));
      } catch (const rpc::CallError& error) {
        if (!move_part(parts[i], servers[i].owner(), error)) throw;
        call_again();
      }
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

std::vector<std::size_t> RemoteRows::all_parts() const {
  std::vector<std::size_t> parts(map_.servers.size());
  std::iota(parts.begin(), parts.end(), std::size_t{0});
  return parts;
}

// The parts of the table that have rows of the batch.
std::vector<std::size_t> RemoteRows::parts_of(const std::vector<Share>& shares) {
  std::vector<std::size_t> parts;
  for (std::size_t part = 0; part < shares.size(); ++part)
    if (!shares[part].ids.empty()) parts.push_back(part);
  return parts;
}

RemoteRows::Ref RemoteRows::server_of(std::size_t part) const {
  const std::lock_guard lock(moving_);
  check(part < servers_.size(), "worker {}: this worker has left table '{}'", worker_, table_);
  return servers_[part];
}

// Whether a call failed because its server is lost. (Errors that a server reports are kAborted.)
bool RemoteRows::is_lost(const std::string& server, const rpc::CallError& error) const {
  return error.code() == ErrorCode::kPeerLost ||
         workers_.wait_until_gone(server, std::chrono::milliseconds(0));
}

// Opens a part of the table at a server or, if the server is lost, at its backup.
RemoteRows::Ref RemoteRows::open_at(const std::string& server, const OpenRows& request) const {
  std::string owner = server;
  for (std::size_t tries = 0;; ++tries) {
    try {
      Ref ref = workers_.create<ServedRows>(owner, request, call_options());
      ref.call<&ServedRows::state>({}, call_options()).get();  // throws an error of the constructor
      return ref;
    } catch (const rpc::CallError& error) {
      const std::string backup = backup_of(*workers_.store(), owner);
      if (backup.empty() || tries == map_.servers.size() || !is_lost(owner, error)) throw;
      owner = backup;
    }
  }
}

// Opens a part at the backup of its server, if the server is lost. Returns false if the server is
// not lost or has no backup, and for a synchronous table.
bool RemoteRows::move_part(std::size_t part, const std::string& lost,
                           const rpc::CallError& error) const {
  const std::lock_guard lock(moving_);
  if (part >= servers_.size()) return false;
  if (servers_[part].owner() != lost) return true;  // another thread was faster
  if (consistency_.kind() == Consistency::Kind::kSynchronous || !is_lost(lost, error)) return false;
  const std::string backup = backup_of(*workers_.store(), lost);
  if (backup.empty()) return false;
  OpenRows request = request_;
  request.server = static_cast<std::uint32_t>(part);
  request.new_session.reset();
  request.session = session_;
  request.ticks = num_ticks_;
  servers_[part] = open_at(backup, request);
  return true;
}

RemoteRows::RemoteRows(rpc::Workers& workers, const std::string& table, const RowOptions& options,
                       SlotMap map, const RemoteRowsOptions& remote)
    : workers_(workers),
      worker_(workers.name()),
      table_(table),
      width_(options.width),
      consistency_(options.consistency),
      map_(std::move(map)),
      options_(remote) {
  request_ = request_of(table, options);
  request_.timeout_ms = options_.timeout.count();
  request_.epoch = map_.epoch;
  request_.num_servers = static_cast<std::uint32_t>(map_.servers.size());
  // The session has the same number on all servers.
  std::random_device random;
  session_ = options_.session.value_or(std::uint64_t{random()} << 32 | random() | 1);
  (options_.session ? request_.session : request_.new_session) = session_;
  for (const std::string& server : map_.servers) {
    servers_.push_back(open_at(server, request_));
    ++request_.server;
  }
  sequence_ = RemoteRows::sequence();
}

rpc::CallOptions RemoteRows::call_options() const {
  return {.deadline = options_.timeout + kAnswerTime};
}

RowsState RemoteRows::state_of(std::size_t part) const {
  return call_server(
      part, [&](const Ref& server) { return server.call<&ServedRows::state>({}, call_options()); });
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
  const std::vector<Share> shares = divide(batch);
  std::vector<float> distinct(batch.size() * width_);
  const auto request = [&](const Ref& server, std::size_t s) {
    return server.call<&ServedRows::pull>(
        {.epoch = map_.epoch, .as_bfloat16 = options_.as_bfloat16, .ids = shares[s].ids},
        call_options());
  };
  on_servers(parts_of(shares), request, [&](std::size_t s, PulledRows reply) {
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
  });
  for (std::size_t place = 0; place < ids.size(); ++place)
    std::memcpy(values.data() + place * width_, distinct.data() + batch.index_of(place) * width_,
                width_ * sizeof(float));
}

void RemoteRows::push(std::span<const Id> ids, std::span<const float> gradients,
                      std::optional<std::uint64_t> number) {
  check_open("push");
  check(number != 0, "worker {}: push: table '{}': pushes are numbered from 1", worker_, table_);
  const BatchUse use{worker_, "push", table_, width_};
  check_size(use, ids.size(), gradients.size());
  check_finite(use, ids, gradients);
  if (ids.empty()) return;
  const std::lock_guard lock(pushing_);
  RowBatch batch;
  batch.assign(ids);
  // A push that has not reached all servers continues if it is repeated: the servers that have
  // applied it change nothing.
  const bool continues = unfinished_digest_ == batch.digest();
  const std::uint64_t sequence = number.value_or(continues ? unfinished_number_ : sequence_ + 1);
  sequence_ = std::max(sequence_, sequence);
  // An older push that is repeated under its own number does not replace an unfinished push.
  if (sequence >= unfinished_number_) {
    unfinished_number_ = sequence;
    unfinished_digest_ = batch.digest();
  }
  std::vector<Share> shares = divide(batch);
  std::vector<float> sum;
  for (Share& share : shares) {
    share.gradients.resize(share.ids.size() * width_);
    for (std::size_t i = 0; i < share.places.size(); ++i)
      std::memcpy(share.gradients.data() + i * width_,
                  batch.gradient(share.places[i], gradients, width_, sum), width_ * sizeof(float));
    if (!options_.as_bfloat16) continue;
    share.bfloat16.resize(share.gradients.size());
    optim::narrow(Dtype::kBfloat16, share.gradients.data(), share.bfloat16.data(),
                  static_cast<std::int64_t>(share.gradients.size()));
    share.gradients.clear();
  }
  const auto request = [&](const Ref& server, std::size_t s) {
    return server.call<&ServedRows::push>({.epoch = map_.epoch,
                                           .sequence = sequence,
                                           .ids = shares[s].ids,
                                           .gradients = shares[s].gradients,
                                           .bfloat16 = shares[s].bfloat16},
                                          call_options());
  };
  on_servers(parts_of(shares), request, [](std::size_t, const rpc::Nothing&) {});
  if (sequence >= unfinished_number_) unfinished_digest_ = 0;
}

void RemoteRows::tick() {
  check_open("tick");
  const std::lock_guard lock(pushing_);
  const auto request = [&](const Ref& server, std::size_t) {
    return server.call<&ServedRows::tick>({num_ticks_ + 1}, call_options());
  };
  on_servers(all_parts(), request, [](std::size_t, const rpc::Nothing&) {});
  ++num_ticks_;
}

void RemoteRows::set_lr(double lr) {
  check_open("set_lr");
  check(std::isfinite(lr), "worker {}: table '{}': the learning rate {} is not finite", worker_,
        table_, lr);
  const auto request = [&](const Ref& server, std::size_t) {
    return server.call<&ServedRows::set_lr>({lr}, call_options());
  };
  on_servers(all_parts(), request, [](std::size_t, const rpc::Nothing&) {});
}

std::uint64_t RemoteRows::sequence() const {
  std::uint64_t sequence = 0;
  for (std::size_t s = 0; s < map_.servers.size(); ++s)
    sequence = std::max(sequence, state_of(s).sequence);
  return sequence;
}

Rows::Stats RemoteRows::stats() const {
  Rows::Stats all;
  for (std::size_t s = 0; s < map_.servers.size(); ++s) {
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
    all.mean_staleness += one.mean_staleness / static_cast<double>(map_.servers.size());
    all.evicted_workers += one.evicted_workers;
    all.repaired_updates += one.repaired_updates;
  }
  return all;
}

TableCut RemoteRows::cut() {
  check_open("cut");
  const std::lock_guard lock(pushing_);
  std::vector<TableCut> parts;
  for (std::size_t s = 0; s < map_.servers.size(); ++s) {
    const Ref server = server_of(s);
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
  for (std::size_t s = 0; s < map_.servers.size(); ++s) {
    TableCut share = select(cut, [&](Id id) { return map_.owner(id) == s; });
    const std::uint64_t count = kCutPartBytes / (cut.row_floats * sizeof(float) + 64) + 1;
    std::uint64_t begin = 0;
    do {
      const std::uint64_t some = std::min<std::uint64_t>(count, share.ids.size() - begin);
      server_of(s).call<&ServedRows::restore>(part_of(share, begin, some), call_options()).get();
      begin += some;
    } while (begin < share.ids.size());
  }
}

void RemoteRows::leave() {
  has_left_ = true;
  const std::lock_guard lock(moving_);
  servers_.clear();
}

std::size_t SlotMap::owner(Id id) const { return slot_of(id) * servers.size() / kNumSlots; }

SlotMap SlotMap::agree(Store& store, const std::string& table,
                       const std::vector<std::string>& servers) {
  const std::set<std::string> names(servers.begin(), servers.end());
  check(!servers.empty() && servers.size() <= kNumSlots && names.size() == servers.size(),
        "open_rows: a table needs 1 to {} servers with different names, not {}", kNumSlots,
        fmt::join(servers, ", "));
  const std::string key = "tables/slots/" + table;
  for (std::string before = store.check({key}) ? store.get(key) : std::string();;) {
    SlotMap map = parse(before);
    if (map.servers == servers) return map;
    map = {.epoch = map.epoch + 1, .servers = servers};
    const std::string found = store.compare_set(key, before, text_of(map));
    if (found == text_of(map)) return map;
    before = found;
  }
}

}  // namespace paceline::tables
