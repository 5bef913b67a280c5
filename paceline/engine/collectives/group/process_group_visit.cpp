// The group's visits (visit.h). Where ranks do not see each other's buffers, every rank's block
// travels to its visitor and back, a piece at a time.

#include <algorithm>
#include <cstring>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/check.h"

namespace paceline {
namespace {

// Of one rank's block, in bytes.
constexpr std::size_t kPieceBytes = 1 << 20;

}  // namespace

void ProcessGroup::visit(Buffer buffer, const VisitBody& body, const CallOptions& options) {
  run_in_order(visiting(buffer, body), options);
}

WorkPtr ProcessGroup::visit_async(Buffer buffer, VisitBody body, const CallOptions& options) {
  return enqueue(visiting(buffer, std::move(body)), fmt::format("visit in group {}", name_),
                 options);
}

ProcessGroup::Operation ProcessGroup::visiting(Buffer buffer, VisitBody body) {
  require_member("visit");
  require_addressable("visit", buffer.dtype, buffer.count, world_size());
  check(buffer.data != nullptr || buffer.count == 0, "{}: visit: a buffer is null", self_);
  if (buffer.device != Device::kCpu) {
    fail(ErrorCode::kUnsupported, "{}: visit: a buffer in CUDA memory; copy to the host", self_);
  }
  Collective call;
  call.op = Op::kVisit;
  call.part_of = Op::kVisit;
  call.dtype = buffer.dtype;
  call.count = buffer.count;
  call.output = buffer.data;
  return [this, call, body = std::move(body)](const WaitOptions& wait) {
    bool is_in_place = false;
    execute(call, {}, wait, [&](const Fingerprint&, const WaitOptions&) {
      const auto data = world_size() == 1 ? std::vector{call.output} : backend_->seen_by_all();
      is_in_place = !data.empty();
      if (!is_in_place) return;
      const VisitedBlock block = visited_block(call.count, call.dtype, rank_, world_size());
      visit_block(call, body, block, data, block.begin);
    });
    if (is_in_place) {
      Collective done;
      done.part_of = Op::kVisit;
      execute(done, {}, wait);
    } else {
      visit_copies(call, body, wait);
    }
  };
}

// `offset`: of the block in `data`. The other ranks must not wait for one whose body has thrown.
void ProcessGroup::visit_block(const Collective& call, const VisitBody& body,
                               const VisitedBlock& block, std::vector<std::byte*> data,
                               std::size_t offset) {
  if (block.count == 0) return;
  for (std::byte*& rank : data) rank += offset * size_of(call.dtype);
  visitor_ = std::this_thread::get_id();
  try {
    body({block.begin, block.count, data});
    visitor_ = std::thread::id();
  } catch (...) {
    visitor_ = std::thread::id();
    const Error cause(ErrorCode::kAborted,
                      fmt::format("{}: the body of visit #{} in group {} threw: {}", self_,
                                  sequence_, name_, describe_current_exception()));
    flight_.note_failure(cause.what());
    backend_->abort(cause);
    throw;
  }
}

void ProcessGroup::visit_copies(const Collective& visit, const VisitBody& body,
                                const WaitOptions& wait) {
  const std::size_t world = world_ranks_.size();
  const std::size_t element = size_of(visit.dtype);
  const std::size_t most = kPieceBytes / element;
  const auto block_of = [&](std::size_t rank) {
    return visited_block(visit.count, visit.dtype, static_cast<int>(rank), world_size());
  };
  std::vector<std::byte> own, all;  // this rank's elements for each visitor; all ranks' for it
  std::vector<VisitedBlock> pieces(world);
  std::vector<std::size_t> there(world * world), back(world * world);
  const std::size_t longest = block_of(0).count;
  for (std::size_t done = 0; done < longest; done += most) {
    std::size_t total = 0;
    for (std::size_t rank = 0; rank < world; ++rank) {
      const VisitedBlock block = block_of(rank);
      const std::size_t begin = std::min(done, block.count);
      pieces[rank] = {block.begin + begin, std::min(most, block.count - begin)};
      total += pieces[rank].count;
      for (std::size_t other = 0; other < world; ++other) {
        there[other * world + rank] = pieces[rank].count;
        back[rank * world + other] = pieces[rank].count;
      }
    }
    const VisitedBlock mine = pieces[static_cast<std::size_t>(rank_)];
    own.resize(total * element);
    all.resize(world * mine.count * element);
    const auto for_each_piece = [&](auto&& copy) {
      std::byte* at = own.data();
      for (const VisitedBlock& piece : pieces) {
        copy(visit.output + piece.begin * element, at, piece.count * element);
        at += piece.count * element;
      }
    };
    const auto exchange = [&](std::span<const std::size_t> counts, const std::byte* from,
                              std::byte* to) {
      Collective call;
      call.op = Op::kAllToAllV;
      call.part_of = Op::kVisit;
      call.dtype = visit.dtype;
      call.counts = counts;
      call.count = saturated_sum(counts);
      call.layout = layout_of(counts);
      call.input = from;
      call.output = to;
      execute(call, {}, wait);
    };
    for_each_piece([](std::byte* buffer, std::byte* at, std::size_t bytes) {
      if (bytes > 0) std::memcpy(at, buffer, bytes);
    });
    exchange(there, own.data(), all.data());
    std::vector<std::byte*> data;
    for (std::size_t rank = 0; rank < world; ++rank) {
      data.push_back(all.data() + rank * mine.count * element);
    }
    visit_block(visit, body, mine, std::move(data), 0);
    exchange(back, all.data(), own.data());
    for_each_piece([](std::byte* buffer, const std::byte* at, std::size_t bytes) {
      if (bytes > 0) std::memcpy(buffer, at, bytes);
    });
  }
}

}  // namespace paceline
