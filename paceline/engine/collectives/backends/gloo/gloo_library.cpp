#include <algorithm>
#include <functional>
#include <string_view>
#include <vector>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/broadcast.h>
#include <gloo/config.h>
#include <gloo/gather.h>
#include <gloo/reduce.h>
#include <gloo/scatter.h>

#include "paceline/engine/collectives/backends/blocking_calls.h"
#include "paceline/engine/collectives/backends/gloo/gloo_context.h"
#include "paceline/engine/collectives/backends/library.h"
#include "paceline/engine/collectives/backends/library_list.h"
#include "paceline/engine/collectives/kernels/reduce.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"

namespace paceline {
namespace {

using std::chrono::milliseconds;

// Calls `call` with a value whose type has the element's size: Gloo uses only the size of the type.
template <class Call>
void with_element_type(Dtype dtype, const Call& call) {
  const std::size_t bytes = size_of(dtype);
  if (bytes == 1) return call(std::uint8_t());
  if (bytes == 2) return call(std::uint16_t());
  if (bytes == 4) return call(std::uint32_t());
  call(std::uint64_t());
}

class GlooLibrary : public Library {
 public:
  explicit GlooLibrary(const LibraryContext& context)
      : group_(context.group),
        self_(context.self()),
        rank_(context.rank),
        world_size_(context.world_size()) {
    guarded("the connection", [&] { connect(context); });
    watch_ = std::make_unique<RunWatch>(context.mesh, [this] { abort(); });
  }
  ~GlooLibrary() override {
    watch_.reset();
    context_->closeConnections();
  }

  const char* transport() const override { return "tcp"; }
  bool supports(Op op, Dtype dtype, ReduceOp reduce_op) const override {
    return !reduces(op) || is_defined(reduce_op, dtype);
  }

  void run(const Collective& call, std::uint32_t sequence, Deadline deadline) override {
    const RunWatch::Scope watched(*watch_);
    guarded(name_of(call.op), [&] {
      with_element_type(call.dtype, [&](auto element) {
        using T = decltype(element);
        carry_out<T>({call, sequence, timeout_of(deadline)});
      });
    });
  }

  void abort() override {
    const BrokenPipeGuard guard;
    context_->end_waits();
  }

 private:
  struct Request {
    const Collective& call;
    std::uint32_t tag;
    milliseconds timeout;
  };

  // Gloo takes inputs that are not const, but does not write to them.
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer(const std::byte* data, std::size_t bytes) {
    return context_->createUnboundBuffer(const_cast<std::byte*>(data), bytes);
  }

  void connect(const LibraryContext& context) {
    context_ = std::make_shared<AbortableContext>(rank_, world_size_);
    // While it connects, Gloo waits five times as long as its timeout.
    context_->setTimeout(std::max(milliseconds(1), timeout_of(context.deadline) / 5));
    GlooStore store(context);
    context_->connect(store, context.address);
  }

  template <class T>
  void carry_out(const Request& request) {
    switch (request.call.op) {
      case Op::kAllReduce:
        return all_reduce<T>(request);
      case Op::kBroadcast:
        return broadcast<T>(request);
      case Op::kReduce:
        return reduce<T>(request);
      case Op::kAllGather:
        return all_gather<T>(request);
      case Op::kGather:
        return gather<T>(request);
      case Op::kScatter:
        return scatter<T>(request);
      case Op::kReduceScatter:
        return reduce_scatter<T>(request);
      case Op::kAllToAll:
        return all_to_all<T>(request);
      default:
        fail(ErrorCode::kUnsupported, "{}: gloo has no {}", self_, name_of(request.call.op));
    }
  }

  template <class T>
  void all_reduce(const Request& request) {
    const auto& call = request.call;
    auto options = prepare<gloo::AllreduceOptions>(request);
    if (call.input != call.output) {
      options.setInput<T>(buffer(call.input, call.count * sizeof(T)));
    }
    options.setOutput<T>(buffer(call.output, call.count * sizeof(T)));
    options.setReduceFunction(combine(call));
    gloo::allreduce(options);
    finish_mean(call, rank_, world_size_);
  }

  // Gloo uses every rank's output as a buffer for partial results, so ranks without a result pass
  // scratch.
  template <class T>
  void reduce(const Request& request) {
    const auto& call = request.call;
    std::vector<std::byte> scratch;
    std::byte* output = call.output;
    if (rank_ != call.root) {
      scratch.resize(call.count * sizeof(T));
      output = scratch.data();
    }
    auto options = prepare<gloo::ReduceOptions>(request);
    if (call.input != output) {
      options.setInput<T>(buffer(call.input, call.count * sizeof(T)));
    }
    options.setOutput<T>(buffer(output, call.count * sizeof(T)));
    options.setRoot(call.root);
    options.setReduceFunction(combine(call));
    gloo::reduce(options);
    finish_mean(call, rank_, world_size_);
  }

  template <class T>
  void broadcast(const Request& request) {
    const auto& call = request.call;
    auto options = prepare<gloo::BroadcastOptions>(request);
    if (rank_ == call.root && call.input != call.output) {
      options.setInput<T>(buffer(call.input, call.count * sizeof(T)));
    }
    options.setOutput<T>(buffer(call.output, call.count * sizeof(T)));
    options.setRoot(call.root);
    gloo::broadcast(options);
  }

  template <class T>
  void all_gather(const Request& request) {
    const auto& call = request.call;
    auto options = prepare<gloo::AllgatherOptions>(request);
    if (call.input != block_of(call.output, call, rank_)) {
      options.setInput<T>(buffer(call.input, call.count * sizeof(T)));
    }
    options.setOutput<T>(buffer(call.output, call.count * ranks() * sizeof(T)));
    gloo::allgather(options);
  }

  template <class T>
  void gather(const Request& request) {
    const auto& call = request.call;
    auto options = prepare<gloo::GatherOptions>(request);
    options.setInput<T>(buffer(call.input, call.count * sizeof(T)));
    if (rank_ == call.root) {
      options.setOutput<T>(buffer(call.output, call.count * ranks() * sizeof(T)));
    }
    options.setRoot(call.root);
    gloo::gather(options);
  }

  template <class T>
  void scatter(const Request& request) {
    const auto& call = request.call;
    auto options = prepare<gloo::ScatterOptions>(request);
    if (rank_ == call.root) {
      std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> blocks;
      for (int rank = 0; rank < world_size_; ++rank) {
        blocks.push_back(buffer(block_of(call.input, call, rank), call.count * sizeof(T)));
      }
      options.setInputs<T>(std::move(blocks));
    }
    options.setOutput<T>(buffer(call.output, call.count * sizeof(T)));
    options.setRoot(call.root);
    gloo::scatter(options);
  }

  template <class T>
  void all_to_all(const Request& request) {
    const auto& call = request.call;
    auto options = prepare<gloo::AlltoallOptions>(request);
    options.setInput<T>(buffer(call.input, call.count * ranks() * sizeof(T)));
    options.setOutput<T>(buffer(call.output, call.count * ranks() * sizeof(T)));
    gloo::alltoall(options);
  }

  template <class T>
  void reduce_scatter(const Request& request) {
    std::vector<std::byte> contributions;
    reduce_contributions(request.call, rank_, world_size_, contributions,
                         [&](const Collective& moved) {
                           all_to_all<T>({moved, request.tag, request.timeout});
                         });
  }

  template <class Options>
  Options prepare(const Request& request) const {
    Options options(context_);
    options.setTag(request.tag);
    options.setTimeout(request.timeout);
    return options;
  }

  // The function that Gloo calls to combine two contributions; a mean stays a sum until the end.
  static std::function<void(void*, const void*, const void*, std::size_t)> combine(
      const Collective& call) {
    const Dtype dtype = call.dtype;
    const ReduceOp op = call.reduce_op == ReduceOp::kMean ? ReduceOp::kSum : call.reduce_op;
    return [dtype, op](void* to, const void* a, const void* b, std::size_t count) {
      const std::byte* sources[] = {static_cast<const std::byte*>(a),
                                    static_cast<const std::byte*>(b)};
      paceline::reduce(sources, static_cast<std::byte*>(to), count, dtype, op);
    };
  }

  std::size_t ranks() const { return static_cast<std::size_t>(world_size_); }

  void guarded(std::string_view what, const std::function<void()>& operation) const {
    const BrokenPipeGuard guard;
    try {
      operation();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      fail(code_of_text(error.what()), "{}: {} of group {} failed in Gloo: {}", self_, what, group_,
           error.what());
    }
  }

  const std::string group_;
  const std::string self_;
  const int rank_;
  const int world_size_;
  std::shared_ptr<AbortableContext> context_;
  std::unique_ptr<RunWatch> watch_;
};

}  // namespace

BackendInfo gloo_info() {
  return {.name = "gloo",
          .device = Device::kCpu,
          .available = true,
          .text = fmt::format("Gloo {}.{}.{}, TCP", GLOO_VERSION_MAJOR, GLOO_VERSION_MINOR,
                              GLOO_VERSION_PATCH),
          .advice = ""};
}

std::unique_ptr<Library> connect_gloo(const LibraryContext& context) {
  return std::make_unique<GlooLibrary>(context);
}

}  // namespace paceline
