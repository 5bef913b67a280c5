#include "paceline/training/tensor/c10d.h"

#include <cstring>
#include <optional>
#include <vector>

#include <ATen/ATen.h>

#ifndef PACELINE_NO_C10D
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#endif

#include "paceline/engine/collectives/backends/blocking_calls.h"
#include "paceline/engine/collectives/backends/library.h"
#include "paceline/engine/collectives/backends/library_list.h"
#include "paceline/engine/collectives/op_traits.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/training/tensor/current_error.h"
#include "paceline/training/tensor/tensor_view.h"

namespace paceline {
namespace {

using std::chrono::milliseconds;
using Tensors = std::vector<at::Tensor>;
using C10dWork = c10::intrusive_ptr<c10d::Work>;

// Paceline's store with the interface of c10d's. A wait ends early when a peer dies.
class StoreOfC10d : public PortableStore {
 public:
  StoreOfC10d(std::shared_ptr<paceline::Store> store, Mesh& mesh, Deadline deadline)
      : store_(std::move(store)), mesh_(mesh), deadline_(deadline) {}

  // Returns a store for another thread; several threads may share Paceline's store.
  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::make_intrusive<StoreOfC10d>(store_, mesh_, deadline_);
  }

  using c10d::Store::set;
  void set(const std::string& key, const std::vector<std::uint8_t>& value) override {
    store_->set(key, std::string(value.begin(), value.end()));
  }
  std::vector<std::uint8_t> get(const std::string& key) override {
    wait({key});
    const std::string value = store_->get(key);
    return {value.begin(), value.end()};
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    return store_->add(key, amount);
  }
  bool deleteKey(const std::string& key) override { return store_->delete_key(key); }
  bool check(const std::vector<std::string>& keys) override { return store_->check(keys); }
  std::int64_t getNumKeys() override { return store_->num_keys(); }
  void wait(const std::vector<std::string>& keys) override {
    wait_for_keys(*store_, keys, mesh_, deadline_, "c10d");
  }
  // Ignores c10d's timeout, which starts again with each wait; the group's deadline applies
  // instead.
  void wait(const std::vector<std::string>& keys, const milliseconds& /*timeout*/) override {
    wait(keys);
  }

 private:
  const std::shared_ptr<paceline::Store> store_;
  Mesh& mesh_;
  const Deadline deadline_;
};

// Returns c10d's reduction; nullopt if c10d's Gloo does not support it, or does not propagate NaN.
// A mean becomes a sum, which the caller divides.
std::optional<c10d::ReduceOp> reduction_of(ReduceOp op, Dtype dtype) {
  if (dtype == Dtype::kBfloat16 || dtype == Dtype::kBool || dtype == Dtype::kInt16) return {};
  const bool compares = op == ReduceOp::kMin || op == ReduceOp::kMax;
  if (compares && is_floating_point(dtype)) return {};
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMean:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kProduct:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    default:
      return {};
  }
}

class C10dLibrary : public Library {
 public:
  C10dLibrary(std::string name, const LibraryContext& context, const C10dFactory& factory)
      : name_(std::move(name)),
        group_(context.group),
        rank_(context.rank),
        world_size_(context.world_size()),
        mesh_(context.mesh) {
    guarded("the connection", [&] {
      process_group_ = factory(
          {.store = c10::make_intrusive<StoreOfC10d>(context.store, context.mesh, context.deadline),
           .rank = rank_,
           .size = world_size_,
           .address = context.address,
           .timeout = timeout_of(context.deadline)});
    });
    check(process_group_.defined() && process_group_->getRank() == rank_ &&
              process_group_->getSize() == world_size_,
          "rank {}: backend {} made no process group, or one with another rank or size", rank_,
          name_);
  }
  // An abandoned operation may still use its group and buffers, so they are leaked on purpose.
  ~C10dLibrary() override {
    if (abandoned_) {
      new Remains{std::move(process_group_), std::move(work_), std::move(scratch_)};
    }
  }

  const char* transport() const override { return "c10d"; }
  bool supports(Op op, Dtype dtype, ReduceOp reduce_op) const override {
    return !reduces(op) || is_defined(reduce_op, dtype);
  }

  void run(const Collective& call, std::uint32_t /*sequence*/, Deadline deadline) override {
    switch (call.op) {
      case Op::kAllReduce:
      case Op::kReduce:
      case Op::kReduceScatter:
        return run_reduction(call, deadline);
      default:
        return move(call, deadline);
    }
  }

  // Does nothing: run() polls for failures itself, and c10d cannot cancel an operation.
  void abort() override {}

 private:
  struct Remains {
    c10::intrusive_ptr<C10dProcessGroup> process_group;
    C10dWork work;
    std::vector<std::byte> scratch;
  };

  void run_reduction(const Collective& call, Deadline deadline) {
    const auto reduction = reduction_of(call.reduce_op, call.dtype);
    if (!reduction || call.op == Op::kReduceScatter) {
      reduce_contributions(call, rank_, world_size_, scratch_,
                           [&](const Collective& moved) { move(moved, deadline); });
      return;
    }
    // c10d reduces in place, and uses the tensor of every rank for partial results.
    const bool has_result = call.op == Op::kAllReduce || rank_ == call.root;
    std::byte* data = call.output;
    if (!has_result) {
      scratch_.resize(bytes_of(call));
      data = scratch_.data();
    }
    if (data != call.input) std::memcpy(data, call.input, bytes_of(call));
    Tensors tensors = {
        at::from_blob(data, {static_cast<std::int64_t>(call.count)}, to_scalar_type(call.dtype))};
    complete(call, deadline, [&]() -> C10dWork {
      if (call.op == Op::kReduce) {
        auto options = options_for<c10d::ReduceOptions>(call, deadline);
        options.reduceOp = *reduction;
        return process_group_->reduce(tensors, options);
      }
      auto options = options_for<c10d::AllreduceOptions>(call, deadline);
      options.reduceOp = *reduction;
      return process_group_->allreduce(tensors, options);
    });
    finish_mean(call, rank_, world_size_);
  }

  // Carries out the operations that only move elements.
  void move(const Collective& call, Deadline deadline) {
    if (call.op == Op::kBroadcast && rank_ == call.root && call.input != call.output) {
      std::memcpy(call.output, call.input, bytes_of(call));
    }
    const std::size_t bytes = bytes_of(call);
    const auto all_bytes = bytes * static_cast<std::size_t>(world_size_);
    Tensors input, output;
    std::vector<Tensors> blocks;
    complete(call, deadline,
             [&] { return start(call, deadline, bytes, all_bytes, input, output, blocks); });
  }

  C10dWork start(const Collective& call, Deadline deadline, std::size_t bytes,
                 std::size_t all_bytes, Tensors& input, Tensors& output,
                 std::vector<Tensors>& blocks) {
    switch (call.op) {
      case Op::kBroadcast:
        output = {view(call.output, bytes)};
        return process_group_->broadcast(output,
                                         options_for<c10d::BroadcastOptions>(call, deadline));
      case Op::kAllGather:
        input = {view(call.input, bytes)};
        blocks = {views(call.output, call)};
        return process_group_->allgather(blocks, input,
                                         options_for<c10d::AllgatherOptions>(call, deadline));
      case Op::kGather:
        input = {view(call.input, bytes)};
        if (rank_ == call.root) blocks = {views(call.output, call)};
        return process_group_->gather(blocks, input,
                                      options_for<c10d::GatherOptions>(call, deadline));
      case Op::kScatter:
        output = {view(call.output, bytes)};
        if (rank_ == call.root) blocks = {views(call.input, call)};
        return process_group_->scatter(output, blocks,
                                       options_for<c10d::ScatterOptions>(call, deadline));
      case Op::kAllToAll: {
        input = {view(call.input, all_bytes)};
        output = {view(call.output, all_bytes)};
        std::vector<std::int64_t> equal;
        return process_group_->alltoall_base(output[0], input[0], equal, equal,
                                             options_for<c10d::AllToAllOptions>(call, deadline));
      }
      default:
        fail(ErrorCode::kUnsupported, "rank {}: {} has no {}", rank_, name_, name_of(call.op));
    }
  }

  template <class Options>
  static Options options_for(const Collective& call, Deadline deadline) {
    Options options;
    options.timeout = timeout_of(deadline);
    if constexpr (requires { options.rootRank; }) options.rootRank = call.root;
    return options;
  }

  template <class Start>
  void complete(const Collective& call, Deadline deadline, Start&& start) {
    guarded(name_of(call.op), [&] {
      work_ = start();
      abandoned_ = true;
      poll_until([&] { return work_->isCompleted(); }, mesh_, deadline,
                 std::string(name_of(call.op)));
      abandoned_ = false;
      work_->wait();  // throws the operation's error
    });
  }

  // c10d takes inputs as non-const, but does not write to them.
  static at::Tensor view(const std::byte* data, std::size_t bytes) {
    return at::from_blob(const_cast<std::byte*>(data), {static_cast<std::int64_t>(bytes)},
                         at::kByte);
  }
  Tensors views(const std::byte* data, const Collective& call) const {
    Tensors all;
    for (int rank = 0; rank < world_size_; ++rank) {
      all.push_back(view(block_of(data, call, rank), bytes_of(call)));
    }
    return all;
  }

  template <class Operation>
  void guarded(std::string_view what, Operation&& operation) const {
    try {
      operation();
    } catch (const Error&) {
      throw;
    } catch (...) {
      const std::string text = current_error().what();
      fail(code_of_text(text), "rank {}: {} of group {} failed in backend {}: {}", rank_, what,
           group_, name_, text);
    }
  }

  const std::string name_;
  const std::string group_;
  const int rank_;
  const int world_size_;
  Mesh& mesh_;
  c10::intrusive_ptr<C10dProcessGroup> process_group_;
  C10dWork work_;
  std::vector<std::byte> scratch_;
  bool abandoned_ = false;
};

}  // namespace

void register_c10d_backend(const std::string& name, C10dFactory factory) {
  LibraryEntry entry;
  entry.info.name = name;
  entry.info.available = true;
  entry.info.text = "a process group of LibTorch's c10d";
  entry.connect = [name, factory = std::move(factory)](const LibraryContext& context) {
    return std::make_unique<C10dLibrary>(name, context, factory);
  };
  register_library(std::move(entry));
}

// Registers the Gloo that is part of LibTorch as backend "c10d", or the reason why this build does
// not have it.
#ifdef PACELINE_NO_C10D
bool register_libtorch_gloo() {
  register_library({.info = {.name = "c10d",
                             .device = Device::kCpu,
                             .available = false,
                             .text = PACELINE_NO_C10D,
                             .advice = "apt-get install libgloo-dev and build again"},
                    .connect = {}});
  return false;
}
#else
bool register_libtorch_gloo() {
  register_c10d_backend("c10d", [](const C10dMember& me) {
    const BrokenPipeGuard guard;  // Gloo's threads inherit the blocked signal
    auto options = c10d::ProcessGroupGloo::Options::create(me.timeout);
    options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname(me.address)};
    return c10::intrusive_ptr<C10dProcessGroup>(
        c10::make_intrusive<c10d::ProcessGroupGloo>(me.store, me.rank, me.size, options));
  });
  return true;
}
#endif

}  // namespace paceline
