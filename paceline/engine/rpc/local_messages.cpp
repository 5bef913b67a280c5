#include "paceline/engine/rpc/local_messages.h"

#include <mutex>
#include <unordered_map>
#include <utility>

#include "paceline/engine/core/check.h"

namespace paceline::rpc {
namespace {

struct Kept {
  std::mutex mutex;  // guards all that follows
  std::unordered_map<std::uint64_t, OutgoingPointer> messages;
  std::uint64_t last_ticket = 0;
};

// Never destroyed: a worker in a global variable may end after it.
Kept& kept() {
  static auto& kept = *new Kept;
  return kept;
}

}  // namespace

std::uint64_t LocalMessages::keep(OutgoingPointer message) {
  Kept& all = kept();
  const std::lock_guard lock(all.mutex);
  all.messages.emplace(++all.last_ticket, std::move(message));
  return all.last_ticket;
}

OutgoingPointer LocalMessages::take(std::uint64_t ticket) {
  Kept& all = kept();
  const std::lock_guard lock(all.mutex);
  auto node = all.messages.extract(ticket);
  if (node.empty()) fail(ErrorCode::kCorrupt, "a worker sent a ticket for no message");
  return std::move(node.mapped());
}

void LocalMessages::discard(std::uint64_t ticket) {
  OutgoingPointer message;  // ends after the lock
  Kept& all = kept();
  const std::lock_guard lock(all.mutex);
  auto node = all.messages.extract(ticket);
  if (!node.empty()) message = std::move(node.mapped());
}

}  // namespace paceline::rpc
