// Tensors on simulated CUDA devices in groups of backend nccl, over the stand-ins for NVIDIA's
// libraries, compared with the CPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "paceline/planning/schedules/named_schedules.h"
#include "paceline/training/device/streams.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/communication_hook.h"
#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/parallel/fully_shard.h"
#include "paceline/training/pipeline/pipeline.h"
#include "paceline/training/tensor/collectives.h"
#include "paceline/training/tensor/shaped_messages.h"
#include "paceline/training/tensor/tensor_call.h"

#include "tests/harness/borrowed_group.h"
#include "tests/harness/expect_error.h"
#include "tests/harness/standins.h"
#include "tests/training/device/device_ranks.h"

namespace paceline {
namespace {

using harness::borrowed;
using Tensors = PipelineStage::Tensors;
using Mlp = torch::nn::Sequential;

class DeviceNccl : public testing::Test {
 protected:
  void SetUp() override { harness::use_standins(); }
  static void run(int ranks, const DeviceBody& body) {
    run_on_devices(ranks, body, {.backend = "cpu:paceline,cuda:nccl"});
  }
};

void expect_close(const Tensors& found, const Tensors& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(torch::allclose(found[i].cpu(), expected[i].cpu(), 1e-4, 1e-5)) << "tensor " << i;
}

TEST_F(DeviceNccl, unequal_and_coalesced_collectives_are_those_of_the_cpu) {
  run(3, [](ProcessGroup& group, c10::Device device) {
    const auto both = [&](at::ScalarType type, const auto& call) {
      const at::Tensor host = (torch::arange(999) + 100 * group.rank()).remainder(120).to(type);
      const at::Tensor on_device = host.to(device);
      const at::Tensor expected = call(host), found = call(on_device);
      EXPECT_EQ(found.device(), device);
      EXPECT_TRUE(torch::equal(found.cpu(), expected)) << c10::toString(type);
    };
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong,
                                      at::kInt, at::kChar, at::kByte, at::kShort, at::kBool}) {
      both(type, [&](const at::Tensor& t) {
        return all_gather_v(group, t.narrow(0, 0, 5 * group.rank()), {0, 5, 10});
      });
      both(type, [&](const at::Tensor& t) {
        const std::vector<std::int64_t> gives{100, 0, 899};
        const auto rank = static_cast<std::size_t>(group.rank());
        return all_to_all_single(group, t, std::vector<std::int64_t>(3, gives[rank]), gives);
      });
      both(type, [&](const at::Tensor& t) {
        const at::Tensor other = t.clone();
        broadcast_coalesced(group, {t, other.narrow(0, 0, 7)}, 1);
        return torch::cat({t, other});
      });
      if (type == at::kShort || type == at::kBool) continue;  // NCCL does not add them up
      both(type, [&](const at::Tensor& t) {
        return reduce_scatter_v(group, t.remainder(2), {9, 0, 990}, ReduceOp::kMax);
      });
      both(type, [&](const at::Tensor& t) {
        const at::Tensor a = t.remainder(2), b = t.remainder(3);
        all_reduce_coalesced(group, {a, b});
        return torch::cat({a, b});
      });
    }
  });
}

// Rank 1 refuses its tensor and leaves, and rank 0 names it.
TEST_F(DeviceNccl, a_tensor_of_another_device_on_one_rank_is_an_error_on_every_rank) {
  run(2, [](ProcessGroup& group, c10::Device device) {
    const bool is_wrong = group.rank() == 1;
    const at::Tensor values = torch::ones({40}, is_wrong ? c10::Device(c10::kCUDA, 3) : device);
    try {
      all_reduce(group, values);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(is_wrong ? "a buffer is on GPU 3"
                                                            : "see the output of rank 1"));
      EXPECT_NE(error.code(), ErrorCode::kTimeout) << error.what();
    }
  });
}

TEST_F(DeviceNccl, messages_arrive_as_on_the_cpu) {
  run(2, [](ProcessGroup& group, c10::Device device) {
    const int peer = 1 - group.rank();
    for (int round = 0; round < 10; ++round) {
      const at::Tensor mine = torch::full({500}, 1.0F, device).mul_(group.rank() + round);
      const at::Tensor theirs = torch::full({500}, -1.0F, device);
      if (round % 2 == 0) {
        const auto receive = irecv(group, theirs, peer);
        send(group, mine, peer);
        receive->wait();
        EXPECT_EQ(receive->source_rank(), peer);
      } else {
        for (const auto& work :
             batch_isend_irecv(group, {{Op::kSend, mine, peer}, {Op::kReceive, theirs, peer}}))
          work->wait();
      }
      mine.fill_(-5);  // the message has been sent before this
      const at::Tensor doubled = theirs * 2;
      EXPECT_TRUE(torch::equal(doubled.cpu(), torch::full({500}, 2.0F * (peer + round))));
    }
    const at::Tensor columns = torch::zeros({4, 3}, device);
    if (group.rank() == 0) {
      columns.select(1, 1).fill_(2);
      send(group, columns.select(1, 1), peer, 7);
    } else {
      EXPECT_EQ(recv(group, columns.select(1, 2), kAnySource, 7), 0);  // not dense
      EXPECT_EQ(columns.sum().item<float>(), 8);
    }
    expect_error(ErrorCode::kUnsupported, {"cannot travel with its shape"},
                 [&] { send_with_shape(group, columns, peer); });
  });
}

TEST_F(DeviceNccl, messages_do_not_make_the_host_wait) {
  run(2, [](ProcessGroup& group, c10::Device device) {
    const int peer = 1 - group.rank();
    const at::Tensor mine = torch::ones({500}, device), theirs = torch::zeros({500}, device);
    const auto exchange = [&] {
      const auto receive = irecv(group, theirs, peer), sent = isend(group, mine, peer);
      receive->wait();
      sent->wait();
      mine.add_(theirs);
    };
    exchange();
    group.barrier();
    simulated::reset_counts();
    group.barrier();
    for (int i = 0; i < 4; ++i) exchange();
    group.barrier();
    EXPECT_EQ(simulated::counts().synchronisations, 0U);
    group.barrier();
    EXPECT_EQ(mine.sum().item<float>(), 500 * 32);
  });
}

// A buffer that a program drops at once must not be reused before the device has finished with it.
TEST_F(DeviceNccl, dropped_messages_keep_their_memory) {
  run(2, [](ProcessGroup& group, c10::Device device) {
    std::vector<WorkPtr> works;
    for (int i = 0; i < 20; ++i) {
      const at::Tensor tensor = torch::full({500}, static_cast<float>(i), device);
      works.push_back(group.rank() == 0 ? isend(group, tensor, 1) : irecv(group, tensor, 0));
      if (group.rank() == 0) continue;
      works.back()->wait();
      EXPECT_EQ((tensor * 1).sum().item<float>(), 500.0F * static_cast<float>(i));
    }
    for (const WorkPtr& work : works) work->wait();
    group.barrier();
  });
}

// ---- pipelines

struct StagedModel {
  StagedModel(ProcessGroup& group, c10::Device device, const std::string& name)
      : where(device),
        schedule(
            pipeline_schedule(name, group.world_size(), 4, name == "interleaved-1f1b" ? 2 : 1)) {
    std::vector<PipelineStage> stages;
    for (int stage = 0; stage < schedule.num_stages(); ++stage) {
      Mlp layer = made_with_seed(20 + static_cast<std::uint64_t>(stage),
                                 [] { return Mlp(torch::nn::Linear(6, 6), torch::nn::Tanh()); });
      if (schedule.rank_of_stage[static_cast<std::size_t>(stage)] != group.rank()) continue;
      layer->to(where);
      layers.push_back(layer);
      stages.push_back(make_stage(stage, layer));
    }
    pipeline.emplace(borrowed(group), schedule, stages);
    batch = random_tensor({8, 6}, 30).to(where);
    target = random_tensor({2, 6}, 31).to(where);
  }

  Tensors step() {
    for (Mlp& layer : layers) layer->zero_grad();
    return pipeline->step(inputs(), loss()).losses;
  }
  std::vector<Tensors> inputs() const {
    return pipeline->has_first_stage() ? split_micro_batches(batch, 4) : std::vector<Tensors>{};
  }
  Pipeline::Loss loss() const {
    return [this](const Tensors& outputs, int) { return torch::mse_loss(outputs[0], target); };
  }
  Tensors gradients() const {
    Tensors all;
    for (const Mlp& layer : layers) {
      for (const at::Tensor& one : layer->parameters()) all.push_back(one.grad().clone());
    }
    return all;
  }

  const c10::Device where;
  const PipelineSchedule schedule;
  std::vector<Mlp> layers;
  std::optional<Pipeline> pipeline;
  at::Tensor batch, target;
};

class DeviceNcclPipeline : public DeviceNccl, public testing::WithParamInterface<const char*> {};

TEST_P(DeviceNcclPipeline, computes_as_on_the_cpu) {
  for (const int ranks : {2, 3}) {
    run(ranks, [&](ProcessGroup& group, c10::Device device) {
      StagedModel host(group, c10::kCPU, GetParam()), on_device(group, device, GetParam());
      for (int step = 0; step < 3; ++step) {
        expect_close(on_device.step(), host.step());
        expect_close(on_device.gradients(), host.gradients());
      }
      expect_close(on_device.pipeline->evaluate(on_device.inputs(), on_device.loss()),
                   host.pipeline->evaluate(host.inputs(), host.loss()));
    });
  }
}

TEST_P(DeviceNcclPipeline, does_not_make_the_host_wait_for_the_device) {
  run(2, [&](ProcessGroup& group, c10::Device device) {
    StagedModel model(group, device, GetParam());
    model.step();
    group.barrier();
    simulated::reset_counts();
    group.barrier();
    const Tensors losses = model.step();
    group.barrier();
    EXPECT_EQ(simulated::counts().synchronisations, 0U);
    EXPECT_GT(simulated::counts().kernels, 0U);
  });
}

INSTANTIATE_TEST_SUITE_P(Schedules, DeviceNcclPipeline,
                         testing::Values("gpipe", "1f1b", "interleaved-1f1b", "zero-bubble"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

// A stage on the CPU between stages on devices: its tensors travel through host memory in one
// direction only.
TEST_F(DeviceNccl, a_pipeline_may_have_a_stage_on_the_cpu) {
  run(3, [](ProcessGroup& group, c10::Device device) {
    const c10::Device own = group.rank() == 1 ? c10::Device(c10::kCPU) : device;
    StagedModel host(group, c10::kCPU, "1f1b"), mixed(group, own, "1f1b");
    expect_close(mixed.step(), host.step());
    expect_close(mixed.gradients(), host.gradients());
  });
}

// ---- data parallelism

Tensors train(ProcessGroup& group, c10::Device device, int shards) {
  Mlp net = made_with_seed(
      5, [] { return Mlp(torch::nn::Linear(8, 40), torch::nn::ReLU(), torch::nn::Linear(40, 4)); });
  net->to(device);
  optim::AdamW optimizer(net->parameters(), {.lr = 0.01});
  const auto step = [&](const auto& forward, int number) {
    const auto seed = static_cast<std::uint64_t>(10 * number + group.rank());
    optimizer.zero_grad();
    forward(random_tensor({4, 8}, seed).to(device)).square().mean().backward();
    optimizer.step();
  };
  if (shards > 0) {
    auto model = fully_shard(net, borrowed(group), optimizer, {.stage = shards});
    for (int i = 0; i < 3; ++i) step([&](const at::Tensor& x) { return model->forward(x); }, i);
  } else {
    DistributedDataParallel model(net, borrowed(group));
    for (int i = 0; i < 3; ++i) step([&](const at::Tensor& x) { return model.forward(x); }, i);
  }
  Tensors values;
  for (const at::Tensor& one : net->parameters()) values.push_back(one.detach().cpu());
  return values;
}

TEST_F(DeviceNccl, replicas_and_shards_train_as_on_the_cpu) {
  for (const int shards : {0, 1, 2, 3}) {
    run(2, [&](ProcessGroup& group, c10::Device device) {
      expect_close(train(group, device, shards), train(group, c10::kCPU, shards));
    });
  }
}

}  // namespace
}  // namespace paceline
