// The group's operations on many buffers at once. The buffers of a rank are one long stream of
// elements; a window of it at a time is copied into one flat buffer, taken through the plain
// operation, and copied back.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "paceline/engine/collectives/group/process_group.h"
#include "paceline/engine/core/check.h"

namespace paceline {

struct CoalescedSegment {
  std::byte* data;
  std::size_t bytes;
};

namespace {

using Stream = std::vector<CoalescedSegment>;

// Of one window, over all that a rank gives or gets.
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

}  // namespace

// `inputs` and `outputs`: one stream for each block of the plain operation's buffers.
struct ProcessGroup::Coalesced {
  Collective call;        // but for buffers and count
  std::size_t total = 0;  // elements of a stream
  std::vector<Stream> inputs;
  std::vector<Stream> outputs;
};

ProcessGroup::Operation ProcessGroup::coalesced(const Call& call) {
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
    if (output.device != Device::kCpu) {
      fail(ErrorCode::kUnsupported,
           "{}: {} on {} buffers: buffer {} is in CUDA memory; give them one by one, or copy "
           "to the host",
           self_, name, outputs.size(), i);
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
    counts.push_back(count);
  }
  require_apart(name, inputs, outputs);
  held->call.op = op;
  held->call.root = call.root;
  held->call.reduce_op = call.reduce_op;
  held->call.layout = layout_of(counts);
  return [this, held](const WaitOptions& wait) { run_coalesced(*held, wait); };
}

// A window is written before the next is read. One's own input and output have been compared.
void ProcessGroup::require_apart(std::string_view what, std::span<const ConstBuffer> inputs,
                                 std::span<const Buffer> outputs) const {
  std::vector<std::size_t> order;  // of the outputs, by address
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].bytes() > 0) order.push_back(i);
  }
  const auto end_of = [&](std::size_t i) { return outputs[i].data + outputs[i].bytes(); };
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return outputs[a].data < outputs[b].data; });
  const auto refuse = [&](const char* kind, std::size_t one, std::size_t other) {
    fail(ErrorCode::kInvalid, "{}: {} on {} buffers: {} {} and output {} overlap", self_, what,
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

void ProcessGroup::run_coalesced(const Coalesced& coalesced, const WaitOptions& wait) {
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

}  // namespace paceline
