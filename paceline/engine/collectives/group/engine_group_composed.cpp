// Calls with unequal counts, and calls that a group carries out as several calls: all_to_all_v,
// whose counts the ranks compare first; calls on many buffers, which are copied a window at a time;
// visits; and batches of messages.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "paceline/engine/collectives/backends/backend_list.h"
#include "paceline/engine/collectives/group/engine_group.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/error_text.h"

namespace paceline {

// Prepares a call with counts; the operation keeps a copy of them, because it may run later.
EngineGroup::Operation EngineGroup::prepare_with_counts(const Call& call,
                                                        const CallOptions& options) {
  struct Held {
    Collective call;
    std::vector<std::size_t> counts;
  };
  const auto held = std::make_shared<Held>();
  held->call = make(call);
  held->counts.assign(call.counts.begin(), call.counts.end());
  held->call.counts = held->counts;
  return [this, held, order = options.order](const WaitOptions& wait) {
    execute(with_order(held->call, order, wait), {}, wait);
  };
}

// Gathers `mine` of all ranks, in rank order: for each rank, the counts that it sends, then the
// counts that it expects.
std::vector<std::size_t> EngineGroup::agree_on_counts(std::span<const std::size_t> mine,
                                                      const WaitOptions& wait) {
  static_assert(sizeof(std::size_t) == size_of(Dtype::kInt64));
  std::vector<std::size_t> all(mine.size() * world_ranks_.size());
  Collective call;
  call.op = Op::kAllGather;
  call.dtype = Dtype::kInt64;
  call.count = mine.size();
  call.layout = layout_of({});  // no all_gather of a user's elements has this value
  call.input = reinterpret_cast<const std::byte*>(mine.data());
  call.output = reinterpret_cast<std::byte*>(all.data());
  execute(call, {}, wait);
  return all;
}

EngineGroup::Operation EngineGroup::prepare_all_to_all_v(const Call& asked,
                                                         const CallOptions& options) {
  require_member("all_to_all_v");
  const std::span send_counts = asked.counts, receive_counts = asked.receive_counts;
  const std::size_t world = world_ranks_.size();
  check(send_counts.size() == world && receive_counts.size() == world,
        "{}: all_to_all_v: lists of {} and {} counts in a group of {} ranks", self_,
        send_counts.size(), receive_counts.size(), world);
  // This rank knows only its own row and column of the matrix of counts.
  std::vector<std::size_t> mine(world * world);
  const auto self = static_cast<std::size_t>(rank_);
  for (std::size_t peer = 0; peer < world; ++peer) mine[peer * world + self] = receive_counts[peer];
  check(send_counts[self] == receive_counts[self],
        "{}: all_to_all_v: this rank sends itself {} elements but expects {}", self_,
        send_counts[self], receive_counts[self]);
  std::copy(send_counts.begin(), send_counts.end(),
            mine.begin() + static_cast<std::ptrdiff_t>(self * world));
  Collective call;
  call.op = Op::kAllToAllV;
  call.dtype = asked.output.dtype;
  call.device = asked.output.device;
  call.shape = asked.shape;
  call.shapes = asked.shapes;
  call.counts = mine;
  call.count = saturated_sum(mine);
  require_collective(call, asked.input, asked.output);
  call.counts = {};
  call.input = asked.input.data;
  call.output = asked.output.data;
  std::vector<std::size_t> both(send_counts.begin(), send_counts.end());
  both.insert(both.end(), receive_counts.begin(), receive_counts.end());
  return [this, call, both, order = options.order](const WaitOptions& wait) mutable {
    const std::size_t ranks = world_ranks_.size();
    const auto all = agree_on_counts(both, wait);
    std::vector<std::size_t> counts(ranks * ranks);
    for (std::size_t from = 0; from < ranks; ++from) {
      for (std::size_t to = 0; to < ranks; ++to) {
        const std::size_t given = all[from * 2 * ranks + to];
        const std::size_t wanted = all[to * 2 * ranks + ranks + from];
        counts[from * ranks + to] = given;
        if (given == wanted) continue;
        const Error cause(
            ErrorCode::kInvalid,
            fmt::format("{}: all_to_all_v #{} in group {}: the block from {} to {} has {} "
                        "elements, but the receiver expects {}",
                        self_, sequence_.load(), name_, name_of_member(from), name_of_member(to),
                        given, wanted));
        backend_->abort(cause);
        throw cause;
      }
    }
    call.counts = counts;
    call.count = saturated_sum(counts);
    call.layout = layout_of(counts);
    execute(with_order(call, order, wait), {}, wait);
  };
}

// Operations on many buffers at once. A rank's buffers form one long stream of elements. One window
// of the stream at a time is copied into a flat buffer, passed through the plain operation, and
// copied back. On a device, where nothing is copied, the library gets all buffers as one call.

struct CoalescedSegment {
  std::byte* data;
  std::size_t bytes;
};

namespace {

using Stream = std::vector<CoalescedSegment>;

// The most bytes of a window, counting everything that a rank gives and gets.
constexpr std::size_t kWindowBytes = 4 << 20;

// Copies the stream's bytes [begin, begin + bytes) to or from `flat`.
template <class Copy>
void for_each_part(const Stream& stream, std::size_t begin, std::size_t bytes, std::byte* flat,
                   Copy copy) {
  for (const CoalescedSegment& segment : stream) {
    if (begin >= segment.bytes) {
      begin -= segment.bytes;
      continue;
    }
    const std::size_t part = std::min(bytes, segment.bytes - begin);
    copy(segment.data + begin, flat, part);
    flat += part;
    bytes -= part;
    begin = 0;
    if (bytes == 0) return;
  }
}

void pack(const Stream& stream, std::size_t begin, std::size_t bytes, std::byte* flat) {
  for_each_part(
      stream, begin, bytes, flat,
      [](const std::byte* data, std::byte* to, std::size_t n) { std::memcpy(to, data, n); });
}

void unpack(const Stream& stream, std::size_t begin, std::size_t bytes, std::byte* flat) {
  for_each_part(
      stream, begin, bytes, flat,
      [](std::byte* data, const std::byte* from, std::size_t n) { std::memcpy(data, from, n); });
}

// Refuses overlapping buffers, because a window is written before the next one is read. The input
// and output of the same pair have already been compared.
void require_apart(const std::string& self, std::string_view what,
                   std::span<const ConstBuffer> inputs, std::span<const Buffer> outputs) {
  std::vector<std::size_t> order;  // indices of the outputs, sorted by address
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].bytes() > 0) order.push_back(i);
  }
  const auto end_of = [&](std::size_t i) { return outputs[i].data + outputs[i].bytes(); };
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return outputs[a].data < outputs[b].data; });
  const auto refuse = [&](const char* kind, std::size_t one, std::size_t other) {
    fail(ErrorCode::kInvalid, "{}: {} on {} buffers: {} {} and output {} overlap", self, what,
         outputs.size(), kind, one, other);
  };
  for (std::size_t i = 1; i < order.size(); ++i) {
    if (outputs[order[i]].data < end_of(order[i - 1])) refuse("output", order[i], order[i - 1]);
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].bytes() == 0) continue;
    auto at = std::partition_point(order.begin(), order.end(), [&](std::size_t output) {
      return end_of(output) <= inputs[i].data;
    });
    for (; at != order.end() && outputs[*at].data < inputs[i].data + inputs[i].bytes(); ++at) {
      if (*at != i) refuse("input", i, *at);
    }
  }
}

}  // namespace

// `inputs` and `outputs`: one stream for each block of the plain operation's buffers.
struct EngineGroup::Coalesced {
  Collective call;        // the call; its buffers and count are set later
  std::size_t total = 0;  // number of elements of a stream
  std::vector<Stream> inputs;
  std::vector<Stream> outputs;
  std::vector<CollectivePart> parts;  // for device memory only
};

EngineGroup::Operation EngineGroup::prepare_coalesced(const Call& call,
                                                      const CallOptions& options) {
  const Op op = call.op;
  const auto name = name_of(op);
  require_member(name);
  check(op == Op::kAllReduce || op == Op::kBroadcast || op == Op::kAllGather ||
            op == Op::kReduceScatter,
        "{}: {} does not take several buffers; call it for each", self_, name);
  const std::span outputs = call.lists->outputs;
  std::vector<ConstBuffer> inputs(call.lists->inputs.begin(), call.lists->inputs.end());
  const bool is_in_place = inputs.empty() && traits_of(op).in_place == InPlace::kBeginning;
  if (is_in_place) inputs.assign(outputs.begin(), outputs.end());
  check(inputs.size() == outputs.size(), "{}: {} of {} inputs into {} outputs", self_, name,
        inputs.size(), outputs.size());
  auto held = std::make_shared<Coalesced>();
  held->inputs.resize(op == Op::kReduceScatter ? world_ranks_.size() : 1);
  held->outputs.resize(op == Op::kAllGather ? world_ranks_.size() : 1);
  std::vector<std::size_t> counts;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Buffer& output = outputs[i];
    const std::size_t count = output.count / held->outputs.size();
    Call plain = call;
    plain.input = inputs[i];
    plain.output = output;
    const Collective one = make(plain);
    check(output.dtype == outputs[0].dtype,
          "{}: {} on {} buffers: buffer {} is {}, the first is {}", self_, name, outputs.size(), i,
          name_of(output.dtype), name_of(outputs[0].dtype));
    check(output.device == outputs[0].device,
          "{}: {} on {} buffers: buffer {} is in {} memory, the first in {} memory", self_, name,
          outputs.size(), i, name_of(output.device), name_of(outputs[0].device));
    if (output.device != Device::kCpu && !backend_->takes_parts(output.device)) {
      fail(ErrorCode::kUnsupported,
           "{}: {} on {} buffers: buffer {} is in CUDA memory, where backend {} takes only one "
           "buffer a call; make one call for each, or copy to the host",
           self_, name, outputs.size(), i, backend());
    }
    const std::size_t bytes = count * size_of(output.dtype);
    for (std::size_t block = 0; block < held->inputs.size(); ++block) {
      if (one.input == nullptr) continue;
      held->inputs[block].push_back({const_cast<std::byte*>(one.input) + block * bytes, bytes});
    }
    for (std::size_t block = 0; block < held->outputs.size(); ++block) {
      held->outputs[block].push_back({output.data + block * bytes, bytes});
    }
    if (__builtin_add_overflow(held->total, count, &held->total)) held->total = SIZE_MAX;
    require_addressable(name, output.dtype, held->total, world_size());
    held->call = one;
    if (one.device != Device::kCpu)
      held->parts.push_back({.input = one.input, .output = one.output, .count = one.count});
    counts.push_back(count);
  }
  require_apart(self_, name, inputs, outputs);
  held->call.op = op;
  held->call.root = call.root;
  held->call.reduce_op = call.reduce_op;
  held->call.layout = layout_of(counts);
  if (held->call.device == Device::kCpu) {
    return [this, held](const WaitOptions& wait) { run_coalesced(*held, wait); };
  }
  held->call.count = held->total;
  held->call.input = nullptr;
  held->call.output = nullptr;
  held->call.parts = held->parts;
  return [this, held, order = options.order](const WaitOptions& wait) {
    execute(with_order(held->call, order, wait), {}, wait);
  };
}

void EngineGroup::run_coalesced(const Coalesced& coalesced, const WaitOptions& wait) {
  Collective call = coalesced.call;
  const std::size_t element = size_of(call.dtype);
  const std::size_t blocks = coalesced.inputs.size() + coalesced.outputs.size();
  const std::size_t most = std::max<std::size_t>(1, kWindowBytes / element / blocks);
  const std::size_t window = std::min(most, coalesced.total);
  flat_.resize(std::max(flat_.size(), window * blocks * element));
  std::size_t begin = 0;
  do {
    call.count = std::min(window, coalesced.total - begin);
    const std::size_t bytes = call.count * element;
    std::byte* const flat_input = flat_.data();
    std::byte* const flat_output = flat_input + coalesced.inputs.size() * bytes;
    for (std::size_t block = 0; block < coalesced.inputs.size(); ++block) {
      pack(coalesced.inputs[block], begin * element, bytes, flat_input + block * bytes);
    }
    const bool gives = call.op != Op::kBroadcast || rank_ == call.root;
    call.input = gives && bytes > 0 ? flat_input : nullptr;
    call.output = bytes > 0 ? flat_output : nullptr;
    execute(call, {}, wait);
    for (std::size_t block = 0; block < coalesced.outputs.size(); ++block) {
      unpack(coalesced.outputs[block], begin * element, bytes, flat_output + block * bytes);
    }
    begin += call.count;
  } while (begin < coalesced.total);
}

// Visits (call.h). If the ranks cannot map each other's buffers, every rank's block travels to its
// visitor and back, a piece at a time.

namespace {

// The most bytes of a rank's block that travel at a time.
constexpr std::size_t kVisitPieceBytes = 1 << 20;

}  // namespace

void EngineGroup::visit(Buffer buffer, const VisitBody& body, const CallOptions& options) {
  run_in_order(prepare_visit(buffer, body), options);
}

WorkPtr EngineGroup::start_visit(Buffer buffer, VisitBody body, const CallOptions& options) {
  return enqueue(prepare_visit(buffer, std::move(body)), fmt::format("visit in group {}", name_),
                 options);
}

EngineGroup::Operation EngineGroup::prepare_visit(Buffer buffer, VisitBody body) {
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
      const auto data =
          world_size() == 1 ? std::vector{call.output} : backend_->visited_addresses();
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

// Runs the body on a block, which begins `offset` elements into each buffer of `data`. If the body
// throws, the group is aborted, so that the other ranks do not wait for this one.
void EngineGroup::visit_block(const Collective& call, const VisitBody& body,
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
                                  sequence_.load(), name_, describe_current_exception()));
    flight_.note_failure(cause.what());
    backend_->abort(cause);
    throw;
  }
}

void EngineGroup::visit_copies(const Collective& visit, const VisitBody& body,
                               const WaitOptions& wait) {
  const std::size_t world = world_ranks_.size();
  const std::size_t element = size_of(visit.dtype);
  const std::size_t most = kVisitPieceBytes / element;
  const auto block_of = [&](std::size_t rank) {
    return visited_block(visit.count, visit.dtype, static_cast<int>(rank), world_size());
  };
  // This rank's elements for each visitor, and all ranks' elements for this rank's visit.
  std::vector<std::byte> own, all;
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

std::vector<WorkPtr> EngineGroup::batch_isend_irecv(std::span<const Call> messages,
                                                    const CallOptions& options) {
  for (const Call& message : messages) {
    check(traits_of(message.op).has(kIsMessage),
          "{}: batch_isend_irecv takes sends and receives, not {}", self_, name_of(message.op));
    make_message(message, options);
  }
  // Starts the receives first, so that arriving messages have a destination.
  std::vector<WorkPtr> works(messages.size());
  for (const Op op : {Op::kReceive, Op::kSend}) {
    for (std::size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].op == op) works[i] = post(messages[i], true, options);
    }
  }
  return works;
}

}  // namespace paceline
