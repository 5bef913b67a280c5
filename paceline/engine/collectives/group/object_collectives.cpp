#include "paceline/engine/collectives/group/object_collectives.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/deadline.h"
#include "paceline/engine/core/error_text.h"

namespace paceline {

namespace {

// The time limit that the calls of one exchange share.
class SharedTime {
 public:
  SharedTime(const ProcessGroup& group, const ObjectOptions& options)
      : limit_(options.timeout.value_or(group.timeout())), deadline_(Deadline::after(limit_)) {}
  CollectiveOptions first() const { return {.timeout = limit_}; }
  CollectiveOptions rest() const {
    using std::chrono::milliseconds;
    const auto left = std::chrono::ceil<milliseconds>(deadline_.remaining());
    return {.timeout = std::clamp(left, milliseconds(1), std::max(limit_, milliseconds(1)))};
  }

 private:
  const std::chrono::milliseconds limit_;
  const Deadline deadline_;
};

ConstBuffer bytes_of(const std::string& object) {
  return {object.data(), object.size(), Dtype::kUint8};
}
Buffer bytes_of(std::string& object) { return {object.data(), object.size(), Dtype::kUint8}; }

void require_allowed(const ProcessGroup& group, const char* what, int giver, std::size_t length,
                     std::size_t limit) {
  check(length <= limit,
        "{}: {}: the object of {} has {} bytes, and the limit is {} "
        "(ObjectOptions::max_bytes)",
        group.self(), what, group.name_of_member(static_cast<std::size_t>(giver)), length, limit);
}

// Returns the length of every rank's object. If a length exceeds the smallest limit, every rank
// throws Error(kInvalid).
std::vector<std::size_t> agreed_lengths(ProcessGroup& group, const char* what,
                                        const std::string& object, const ObjectOptions& options,
                                        const SharedTime& time) {
  const std::array<std::uint64_t, 2> mine = {object.size(), options.max_bytes};
  std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(group.world_size()));
  group.all_gather(Buffer(all.data(), all.size() * sizeof(all[0]), Dtype::kUint8),
                   ConstBuffer(mine.data(), sizeof(mine), Dtype::kUint8), time.first());
  std::uint64_t limit = options.max_bytes;
  for (std::size_t i = 1; i < all.size(); i += 2) limit = std::min(limit, all[i]);
  std::vector<std::size_t> lengths;
  for (std::size_t i = 0; i < all.size(); i += 2) {
    require_allowed(group, what, static_cast<int>(i / 2), all[i], limit);
    lengths.push_back(all[i]);
  }
  return lengths;
}

}  // namespace

std::string broadcast_object(GroupRef group, const std::string& object, int root,
                             const ObjectOptions& options) {
  const SharedTime time(group, options);
  std::array<std::uint64_t, 2> size = {object.size(), options.max_bytes};
  group->broadcast(Buffer(size.data(), sizeof(size), Dtype::kUint8), root, time.first());
  require_allowed(group, "broadcast_object", root, size[0], size[1]);
  std::string result = group->rank() == root ? object : std::string(size[0], '\0');
  group->broadcast(bytes_of(result), root, time.rest());
  return result;
}

std::vector<std::string> all_gather_object(GroupRef group, const std::string& object,
                                           const ObjectOptions& options) {
  const SharedTime time(group, options);
  const auto lengths = agreed_lengths(group, "all_gather_object", object, options, time);
  std::string all(std::accumulate(lengths.begin(), lengths.end(), std::size_t{0}), '\0');
  group->all_gather_v(bytes_of(all), bytes_of(object), lengths, time.rest());
  std::vector<std::string> objects;
  std::size_t begin = 0;
  for (const std::size_t length : lengths) {
    objects.push_back(all.substr(begin, length));
    begin += length;
  }
  return objects;
}

std::vector<std::string> gather_objects(GroupRef group, const std::string& object, int root,
                                        const ObjectOptions& options) {
  const SharedTime time(group, options);
  const auto lengths = agreed_lengths(group, "gather_objects", object, options, time);
  const std::size_t longest = *std::max_element(lengths.begin(), lengths.end());
  std::string padded = object;
  padded.resize(longest);
  std::string all(group->rank() == root ? longest * lengths.size() : 0, '\0');
  group->gather(bytes_of(all), bytes_of(std::as_const(padded)), root, time.rest());
  std::vector<std::string> objects;
  if (group->rank() != root) return objects;
  for (std::size_t rank = 0; rank < lengths.size(); ++rank)
    objects.push_back(all.substr(rank * longest, lengths[rank]));
  return objects;
}

void detail::throw_error_of(GroupRef group, int root, const std::optional<Error>& own) {
  constexpr std::int32_t kNone = -1;
  std::int32_t code = own ? static_cast<std::int32_t>(own->code()) : kNone;
  group->broadcast(std::span(&code, 1), root);
  if (code == kNone) return;
  const std::string text = broadcast_object(group, own ? own->what() : "", root);
  throw Error(static_cast<ErrorCode>(code), text);
}

void detail::throw_first_error(GroupRef group, const std::optional<Error>& own) {
  const int none = group->world_size();
  const int first = all_reduce_value(group, own ? group->rank() : none, ReduceOp::kMin);
  if (first != none) throw_error_of(group, first, own);
}

void on_rank(int root, GroupRef group, const std::function<void()>& action) {
  std::optional<Error> failure;
  if (group->rank() == root) {
    try {
      action();
    } catch (const Error& error) {
      failure = error;
    } catch (...) {
      failure.emplace(ErrorCode::kSystem, describe_current_exception());
    }
  }
  detail::throw_error_of(group, root, failure);
}

}  // namespace paceline
