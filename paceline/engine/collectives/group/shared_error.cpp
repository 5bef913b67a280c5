#include "paceline/engine/collectives/group/shared_error.h"

#include "paceline/engine/collectives/group/objects.h"

namespace paceline {

void throw_error_of(ProcessGroup& group, int root, const std::optional<Error>& own) {
  constexpr std::int32_t kNone = -1;
  std::int32_t code = own ? static_cast<std::int32_t>(own->code()) : kNone;
  group.broadcast(std::span(&code, 1), root);
  if (code == kNone) return;
  const std::string text = broadcast_object(group, own ? own->what() : "", root);
  throw Error(static_cast<ErrorCode>(code), text);
}

void throw_first_error(ProcessGroup& group, const std::optional<Error>& own) {
  const int none = group.world_size();
  const int first = all_reduce_value(group, own ? group.rank() : none, ReduceOp::kMin);
  if (first != none) throw_error_of(group, first, own);
}

void on_rank(int root, ProcessGroup& group, const std::function<void()>& action) {
  std::optional<Error> failure;
  if (group.rank() == root) {
    try {
      action();
    } catch (const Error& error) {
      failure = error;
    } catch (...) {
      failure.emplace(ErrorCode::kSystem, describe_current_exception());
    }
  }
  throw_error_of(group, root, failure);
}

}  // namespace paceline
