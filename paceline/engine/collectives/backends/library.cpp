#include "paceline/engine/collectives/backends/library.h"

#include <algorithm>
#include <array>

#include "paceline/engine/collectives/backends/blocking_calls.h"
#include "paceline/engine/collectives/kernels/reduce.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/check.h"

namespace paceline {

std::chrono::milliseconds timeout_of(Deadline deadline) {
  using std::chrono::milliseconds;
  return std::max(milliseconds(1), std::chrono::ceil<milliseconds>(deadline.remaining()));
}

// Searches for words without their first letters, which may be capitals.
ErrorCode code_of_text(std::string_view text) {
  constexpr std::array kTimedOut = {"imed out", "imeout"};
  constexpr std::array kLost = {"losed by peer",    "reset by peer",     "roken pipe",
                                "onnection closed", "onnection refused", "air closure"};
  const auto says = [&](std::string_view part) { return text.find(part) != text.npos; };
  if (std::any_of(kTimedOut.begin(), kTimedOut.end(), says)) return ErrorCode::kTimeout;
  if (std::any_of(kLost.begin(), kLost.end(), says)) return ErrorCode::kPeerLost;
  return ErrorCode::kSystem;
}

WorkPtr Library::start(Op op, const PointToPointCall& /*call*/, Deadline /*deadline*/) {
  fail(ErrorCode::kUnsupported, "{}: {} takes no messages", name_of(op), transport());
}

// Runs the kernel's mean with the sum as its only source, because the kernel supports all types and
// their rounding.
void finish_mean(const Collective& call, int rank, int world_size) {
  const bool has_result = call.op != Op::kReduce || rank == call.root;
  if (!reduces(call.op) || call.reduce_op != ReduceOp::kMean || !has_result) return;
  const std::array<const std::byte*, 1> sum{call.output};
  reduce(sum, call.output, call.count, call.dtype, ReduceOp::kMean, divisor_of(call, world_size));
}

void reduce_contributions(const Collective& call, int rank, int world_size,
                          std::vector<std::byte>& contributions,
                          const std::function<void(const Collective& moved)>& move) {
  contributions.resize(bytes_of(call) * static_cast<std::size_t>(world_size));
  Collective moved = call;
  moved.op = call.op == Op::kReduceScatter ? Op::kAllToAll : Op::kAllGather;
  moved.output = contributions.data();
  move(moved);
  if (call.op == Op::kReduce && rank != call.root) return;
  std::vector<const std::byte*> sources;
  for (int giver = 0; giver < world_size; ++giver) {
    sources.push_back(block_of<const std::byte>(contributions.data(), call, giver));
  }
  reduce(sources, call.output, call.count, call.dtype, call.reduce_op, call.divisor);
}

namespace {

// How often a wait for the store checks whether a peer has died.
constexpr std::chrono::milliseconds kSlice{50};

}  // namespace

void wait_for_keys(Store& store, const std::vector<std::string>& keys, Mesh& mesh,
                   Deadline deadline, const std::string& library) {
  const auto wait_a_slice = [&] {
    try {
      store.wait(keys, kSlice);
      return true;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kTimeout) throw;
      return false;
    }
  };
  wait_until(wait_a_slice, mesh, deadline, [&](double seconds) {
    return fmt::format("{}: a rank of group {} did not arrive within {:.1f} s to connect with {}",
                       mesh.self(), mesh.name(), seconds, library);
  });
}

void share_id(const LibraryContext& context, std::span<char> id, const std::string& library) {
  const std::string key = "id";
  if (context.rank == 0) {
    context.store->set(key, std::string(id.begin(), id.end()));
    return;
  }
  wait_for_keys(*context.store, {key}, context.mesh, context.deadline, library);
  const std::string theirs = context.store->get(key);
  if (theirs.size() != id.size()) {
    fail(ErrorCode::kCorrupt,
         "{}: forming group {}: the {} id from rank 0 has {} bytes, not {}; build all ranks with "
         "the same version of {}",
         context.self(), context.group, library, theirs.size(), id.size(), library);
  }
  std::copy(theirs.begin(), theirs.end(), id.begin());
}

}  // namespace paceline
