#include "paceline/collectives/backends/paceline/shared_executor.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "paceline/collectives/plan_text.h"
#include "paceline/core/counted.h"

namespace paceline {
namespace {

// Up to here one phase and a copy are cheaper than the two phases of zero-copy; ranks that share
// cores wait longer for each other.
constexpr std::size_t kTinyBytes = 4 << 10;
constexpr std::size_t kTinyBytesWhenSharingCores = 32 << 10;
// Up to here what peers read is copied before the ranks meet, which saves a phase.
constexpr std::size_t kSmallBytes = 16 << 10;
// Up to here, and staged, every rank reduces everything itself, which saves a phase. Two ranks read
// no more of each other's memory that way, whatever the size.
constexpr std::size_t kOneShotBytes = 8 << 10;

bool is_shared(const Announcement& said) {
  return said.input.region != -1 && said.output.region != -1;
}

}  // namespace

SharedExecutor::SharedExecutor(Mesh& mesh, Deadline deadline)
    : mesh_(mesh),
      most_tiny_(mesh.oversubscribed() ? kTinyBytesWhenSharingCores : kTinyBytes),
      most_one_shot_(mesh.world_size() == 2 ? std::numeric_limits<std::size_t>::max()
                                            : std::max(kOneShotBytes, most_tiny_)),
      share_(mesh, deadline),
      regions_(mesh),
      zero_copy_(mesh, share_, regions_, schedules_),
      staged_(mesh, share_, schedules_) {}

void SharedExecutor::use(SocketPlan plan) {
  socket_plan_.emplace(std::move(plan));
  if (socket_plan_->is_possible()) {
    by_socket_.emplace(mesh_, share_, regions_, schedules_, socket_plan_->sockets());
  }
}

void SharedExecutor::run(const Collective& call, const Fingerprint& fingerprint,
                         const WaitOptions& wait) {
  const auto blocks = gives_blocks(call.op) ? static_cast<std::size_t>(mesh_.world_size()) : 1;
  const bool is_one_shot =
      call.op == Op::kAllReduce && call.count * size_of(call.dtype) <= most_one_shot_;
  const SharedOperation operation{call,   fingerprint, wait, size_of(call.dtype),
                                  blocks, is_one_shot};
  if (has_counts(call.op)) {
    run_counted(operation);
  } else if (fits_one_piece(call, most_tiny_)) {
    run_tiny(operation);
  } else if (fits_one_piece(call, kSmallBytes)) {
    run_small(operation);
  } else {
    run_large(operation);
  }
}

// A function of what all ranks agree on, so that all choose the same way.
bool SharedExecutor::fits_one_piece(const Collective& call, std::size_t most_bytes) const {
  return call.count <= staged_.piece_count(call) && call.count * size_of(call.dtype) <= most_bytes;
}

// Nobody looks where the buffers lie.
void SharedExecutor::run_tiny(const SharedOperation& operation) {
  const std::size_t count = operation.call.count;
  const Schedule& schedule = staged_.schedule_for(operation, count);
  share_.begin_piece();
  staged_.copy_in(operation, schedule, 0, count);
  share_.enter(operation, {operation.fingerprint, {}, {}});
  staged_.run_piece(operation, schedule, 0, count);
}

// A rank whose buffers are not shared copies before it knows of the others, which then is one phase
// less for all.
void SharedExecutor::run_small(const SharedOperation& operation) {
  const std::size_t count = operation.call.count;
  const Announcement announcement = regions_.announcement_for(operation);
  const Schedule& schedule = staged_.schedule_for(operation, count);
  share_.begin_piece();
  if (!is_shared(announcement)) staged_.copy_in(operation, schedule, 0, count);
  share_.enter_with_places(operation, announcement);
  const auto announced = share_.announced();
  if (regions_.hold_all(operation, announced)) {
    zero_copy_.run(operation);
    return;
  }
  if (std::any_of(announced.begin(), announced.end(), is_shared)) {
    if (is_shared(announcement)) staged_.copy_in(operation, schedule, 0, count);
    share_.meet(operation);
  }
  staged_.run_piece(operation, schedule, 0, count);
}

void SharedExecutor::run_counted(const SharedOperation& operation) {
  share_.enter_with_places(operation, regions_.announcement_for(operation));
  if (regions_.hold_all(operation, share_.announced())) {
    zero_copy_.run(operation);
  } else {
    staged_.run_blocks(operation);
  }
}

void SharedExecutor::run_large(const SharedOperation& operation) {
  share_.enter_with_places(operation, regions_.announcement_for(operation));
  const auto& call = operation.call;
  const bool is_in_place = regions_.hold_all(operation, share_.announced());
  if (by_socket_ && socket_plan_->chooses({call.op, call.dtype, call.count})) {
    is_in_place ? by_socket_->run_in_place(operation) : by_socket_->run_staged(operation);
  } else if (is_in_place) {
    zero_copy_.run(operation);
  } else {
    staged_.run(operation);
  }
}

std::string SharedExecutor::explain(const PlanRequest& request) const {
  const std::size_t bytes = request.count * size_of(request.dtype);
  Collective call;
  call.op = request.op;
  call.dtype = request.dtype;
  call.count = request.count;
  const bool is_tiny = fits_one_piece(call, most_tiny_);
  const std::string how =
      is_tiny ? fmt::format("by way of the staging area, up to {} KiB", most_tiny_ >> 10)
              : fmt::format(
                    "read and written in place when all buffers lie in symmetric memory, "
                    "otherwise by way of a staging area of {} KiB",
                    GroupShare::kAreaBytes >> 10);
  const bool asks_plan = socket_plan_ && !is_tiny && !fits_one_piece(call, kSmallBytes);
  const char* name = request.op == Op::kAllReduce && bytes <= most_tiny_ ? "one_shot" : "direct";
  if (asks_plan && socket_plan_->chooses(request)) name = "by_socket";
  return fmt::format("{} among {} in shared memory: {}; {}\n{}", describe(request),
                     counted(mesh_.world_size(), "rank"), name, how,
                     asks_plan ? socket_plan_->explain(request) : "");
}

}  // namespace paceline
