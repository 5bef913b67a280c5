// Gloo over TCP (over the loopback interface if all ranks are on one host), called as PyTorch calls
// it: Gloo chooses the algorithm, and buffers are made for each call.

#include <chrono>

#include <gloo/allgather.h>
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/config.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <gloo/types.h>

#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/rendezvous/rendezvous.h"

#include "apps/bench/contestant/contestant.h"

namespace paceline::bench {
namespace {

constexpr std::chrono::milliseconds kTimeout = std::chrono::minutes(2);

// Gloo uses the store of the job.
class MeetingStore : public gloo::rendezvous::Store {
 public:
  explicit MeetingStore(paceline::Store& store) : store_(store) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    store_.set("gloo/" + key, std::string(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = store_.get("gloo/" + key);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, kTimeout); }
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override {
    for (const std::string& key : keys) store_.get("gloo/" + key, timeout);
  }

 private:
  paceline::Store& store_;
};

// Calls `call` with a value of the type. For bfloat16 and bool, which Gloo lacks, the value has
// another type of the same size; such a type is right for all calls except sums (lacks()).
template <class Call>
void with_type(Dtype dtype, const Call& call) {
  switch (dtype) {
    case Dtype::kFloat32:
      return call(float());
    case Dtype::kFloat64:
      return call(double());
    case Dtype::kFloat16:
    case Dtype::kBfloat16:
      return call(gloo::float16());
    case Dtype::kInt8:
      return call(std::int8_t());
    case Dtype::kInt16:
      return call(std::int16_t());
    case Dtype::kInt32:
      return call(std::int32_t());
    case Dtype::kInt64:
      return call(std::int64_t());
    case Dtype::kUint8:
    case Dtype::kBool:
      return call(std::uint8_t());
  }
}

// The type of the overload of gloo::sum that is used; another overload has two pointers.
using SumFunction = void (*)(void*, const void*, const void*, std::size_t);

class Gloo : public Contestant {
 public:
  explicit Gloo(const WorkerPlace& place) : rank_(place.rank), world_size_(place.world_size) {
    const Rendezvous met = rendezvous();
    MeetingStore store(*met.store);
    gloo::transport::tcp::attr attribute(met.address.c_str());
    std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attribute);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank_, world_size_);
    context->setTimeout(kTimeout);
    context->connectFullMesh(store, device);
    context_ = std::move(context);
  }
  ~Gloo() override { context_->closeConnections(); }
  Gloo(const Gloo&) = delete;
  Gloo& operator=(const Gloo&) = delete;

  std::string version() const override {
    return fmt::format("Gloo {}.{}.{}, tcp", GLOO_VERSION_MAJOR, GLOO_VERSION_MINOR,
                       GLOO_VERSION_PATCH);
  }

  std::string lacks(Op op, Dtype dtype, Placement) const override {
    if (op == Op::kReduceScatter || op == Op::kReduceScatterV) {
      return fmt::format("has no {} among the operations PyTorch calls", paceline::name_of(op));
    }
    if (!reduces(op) || (dtype != Dtype::kBfloat16 && dtype != Dtype::kBool)) return "";
    return fmt::format("has no sum of {}", paceline::name_of(dtype));
  }

  void run(const Collective& call) override {
    if (call.op == Op::kBarrier) {
      auto options = options_for<gloo::BarrierOptions>();
      gloo::barrier(options);
      return;
    }
    with_type(call.dtype, [&](auto element) { run_typed<decltype(element)>(call); });
  }

 private:
  template <class T>
  void run_typed(const Collective& call) {
    // Gloo does not write to its inputs.
    T* const input = reinterpret_cast<T*>(const_cast<std::byte*>(call.input));
    T* const output = reinterpret_cast<T*>(call.output);
    const std::size_t count = call.count, whole = count * static_cast<std::size_t>(world_size_);
    switch (call.op) {
      case Op::kAllReduce:
        return all_reduce(input, output, count);
      case Op::kReduce:
        return reduce(input, output, count, call.root);
      case Op::kBroadcast: {
        auto options = options_for<gloo::BroadcastOptions>();
        options.setOutput(output, count);
        options.setRoot(call.root);
        return gloo::broadcast(options);
      }
      case Op::kAllGather: {
        auto options = options_for<gloo::AllgatherOptions>();
        const bool in_place = input == output + static_cast<std::size_t>(rank_) * count;
        if (!in_place) options.setInput(input, count);
        options.setOutput(output, whole);
        return gloo::allgather(options);
      }
      case Op::kGather: {
        auto options = options_for<gloo::GatherOptions>();
        options.setInput(input, count);
        if (rank_ == call.root) options.setOutput(output, whole);
        options.setRoot(call.root);
        return gloo::gather(options);
      }
      case Op::kScatter: {
        auto options = options_for<gloo::ScatterOptions>();
        if (rank_ == call.root) options.setInputs(blocks_of(input, count), count);
        options.setOutput(output, count);
        options.setRoot(call.root);
        return gloo::scatter(options);
      }
      case Op::kAllGatherV: {
        auto options = options_for<gloo::AllgathervOptions>();
        options.setInput(input, call.counts[static_cast<std::size_t>(rank_)]);
        options.setOutput(output, std::vector<std::size_t>(call.counts.begin(), call.counts.end()));
        return gloo::allgatherv(options);
      }
      case Op::kAllToAllV: {
        auto options = options_for<gloo::AlltoallvOptions>();
        const auto row = call.counts.first(static_cast<std::size_t>(world_size_));
        const std::vector<std::int64_t> counts(row.begin(), row.end());
        options.setInput(input, counts);
        options.setOutput(output, counts);
        return gloo::alltoallv(options);
      }
      case Op::kSend:
        return send_to_next(input, output, count * sizeof(T));
      case Op::kAllToAll: {
        auto options = options_for<gloo::AlltoallOptions>();
        options.setInput(input, whole);
        options.setOutput(output, whole);
        return gloo::alltoall(options);
      }
      default:
        fail(ErrorCode::kUnsupported, "Gloo has no {}", paceline::name_of(call.op));
    }
  }

  template <class T>
  void all_reduce(T* input, T* output, std::size_t count) {
    auto options = options_for<gloo::AllreduceOptions>();
    if (input != output) options.setInput(input, count);
    options.setOutput(output, count);
    options.setReduceFunction(static_cast<SumFunction>(&gloo::sum<T>));
    gloo::allreduce(options);
  }

  // In Gloo, ranks other than the root also need an output, for partial sums. A rank without an
  // output uses its input for them.
  template <class T>
  void reduce(T* input, T* output, std::size_t count, int root) {
    auto options = options_for<gloo::ReduceOptions>();
    if (output != nullptr && input != output) options.setInput(input, count);
    options.setOutput(output != nullptr ? output : input, count);
    options.setReduceFunction(static_cast<SumFunction>(&gloo::sum<T>));
    options.setRoot(root);
    gloo::reduce(options);
  }

  void send_to_next(void* input, void* output, std::size_t bytes) {
    const std::uint64_t slot = ++tag_;
    const auto outgoing = context_->createUnboundBuffer(input, bytes);
    const auto incoming = context_->createUnboundBuffer(output, bytes);
    outgoing->send((rank_ + 1) % world_size_, slot);
    incoming->recv((rank_ + world_size_ - 1) % world_size_, slot);
    const bool is_done = outgoing->waitSend(kTimeout) && incoming->waitRecv(kTimeout);
    check(is_done, "Gloo ended a message early");
  }

  template <class T>
  std::vector<T*> blocks_of(T* input, std::size_t count) const {
    std::vector<T*> blocks;
    for (int rank = 0; rank < world_size_; ++rank)
      blocks.push_back(input + static_cast<std::size_t>(rank) * count);
    return blocks;
  }

  template <class Options>
  Options options_for() {
    Options options(context_);
    options.setTag(++tag_);
    return options;
  }

  const int rank_, world_size_;
  std::shared_ptr<gloo::Context> context_;
  std::uint32_t tag_ = 0;
};

}  // namespace
}  // namespace paceline::bench

int main(int argc, char** argv) {
  return paceline::bench::run_worker(argc, argv, [](const paceline::bench::WorkerPlace& place) {
    return std::make_unique<paceline::bench::Gloo>(place);
  });
}
