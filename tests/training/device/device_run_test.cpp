// The loader, checkpoints, divided optimizers and tensor parallelism on simulated CUDA devices.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <torch/torch.h>

#include "paceline/planning/schedules/named_schedules.h"
#include "paceline/training/data/data_loader.h"
#include "paceline/training/device/device_memory.h"
#include "paceline/training/optim/clip_gradients.h"
#include "paceline/training/optim/exponential_moving_average.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/fully_shard.h"
#include "paceline/training/pipeline/pipeline.h"
#include "paceline/training/tensor/random.h"
#include "paceline/training/tensor_parallel/parallel_linear.h"
#include "paceline/training/train/checkpoints/checkpointer.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/fresh_directory.h"
#include "tests/harness/small_disk.h"
#include "tests/training/device/device_ranks.h"

namespace paceline {
namespace {

std::shared_ptr<ProcessGroup> borrowed(ProcessGroup& group) {
  return {&group, [](ProcessGroup*) {}};
}

using Mlp = torch::nn::Sequential;
using Tensors = PipelineStage::Tensors;

Mlp make_mlp() {
  return made_with_seed(
      5, [] { return Mlp(torch::nn::Linear(8, 40), torch::nn::ReLU(), torch::nn::Linear(40, 4)); });
}

// ---- the loader

class Numbers : public data::Dataset {
 public:
  std::int64_t size() const override { return 64; }
  std::vector<at::Tensor> batch(std::span<const std::int64_t> indices,
                                std::int64_t /*epoch*/) const override {
    const auto count = static_cast<std::int64_t>(indices.size());
    const at::Tensor values = torch::empty({count, 3}), labels = torch::empty({count}, at::kLong);
    for (std::int64_t i = 0; i < count; ++i) {
      values[i].fill_(static_cast<float>(indices[static_cast<std::size_t>(i)]));
      labels[i].fill_(indices[static_cast<std::size_t>(i)]);
    }
    return {values, labels};
  }
  std::string name() const override { return "numbers"; }
};

TEST(DeviceLoader, copies_batches_without_waiting) {
  const std::uint64_t touches = simulated::num_touches(0);
  const c10::Device device(c10::kCUDA, 2);
  const c10::DeviceGuard guard(device);
  for (const int threads : {0, 2}) {
    data::DataLoader loader(std::make_shared<Numbers>(), data::evaluation_indices(64, 1, 0),
                            {.batch_size = 8, .num_threads = threads, .device = device});
    at::Tensor sum = torch::zeros({}, device);
    simulated::reset_counts();
    for (const data::Batch& batch : loader.epoch(0)) {
      EXPECT_EQ(batch.data.device(), device);
      EXPECT_EQ(batch.target.device(), device);
      sum += batch.data.sum() + batch.target.sum();
    }
    EXPECT_EQ(simulated::counts().synchronisations, 0U);
    EXPECT_EQ(sum.item<float>(), 4 * 63 * 32);
  }
  EXPECT_EQ(simulated::num_touches(0), touches) << "a thread of the loader used device 0";
}

// ---- snapshots and checkpoints

TEST(DeviceSnapshot, has_the_values_at_the_time_of_the_copy) {
  const c10::Device device(c10::kCUDA, 1);
  for (int round = 0; round < 20; ++round) {
    const at::Tensor values = torch::zeros({1000}, device);
    values.add_(round);
    DeviceSnapshot snapshot;
    const at::Tensor copy = snapshot.copy_of(values);
    values.fill_(-1);
    snapshot.wait(Deadline::after(std::chrono::seconds(10)), "the test");
    EXPECT_TRUE(torch::equal(copy, torch::full({1000}, static_cast<float>(round))));
    snapshot.copy_back();
    EXPECT_EQ(values.sum().item<float>(), 1000.0F * static_cast<float>(round));
  }
}

// Takes a step with an input that depends on `seed` only.
void train_once(Mlp& net, optim::Optimizer& optimizer, std::uint64_t seed) {
  const at::Tensor input = random_tensor({4, 8}, seed).to(net->parameters().front().device());
  optimizer.zero_grad();
  net->forward(input).square().mean().backward();
  optimizer.step();
}

std::vector<at::Tensor> values_of(Mlp& net) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& one : net->parameters()) values.push_back(one.detach().cpu());
  return values;
}

std::vector<at::Tensor> values_in(const optim::ExponentialMovingAverage& average) {
  std::vector<at::Tensor> values;
  for (const auto& [name, tensor] : average.state()) values.push_back(tensor.cpu().clone());
  return values;
}

void expect_close(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(torch::allclose(found[i], expected[i], 1e-4, 1e-5)) << "tensor " << i;
}

// A model and its optimizer after a step; a checkpoint of both has some 800 KB.
struct LargeRun {
  explicit LargeRun(c10::Device device) : net(made_on(device)), optimizer(net->parameters()) {
    train_once(net, optimizer, 0);
  }
  static Mlp made_on(c10::Device device) {
    Mlp made = made_with_seed(7, [] {
      return Mlp(torch::nn::Linear(8, 4000), torch::nn::ReLU(), torch::nn::Linear(4000, 8));
    });
    made->to(device);
    return made;
  }

  Mlp net;
  optim::AdamW optimizer;
};

TEST(DeviceCheckpoint, continues_on_the_device_and_on_the_cpu) {
  const FreshDirectory folder;
  run_on_devices(2, [&](ProcessGroup& group, c10::Device device) {
    Mlp net = make_mlp();
    net->to(device);
    optim::AdamW optimizer(net->parameters(), {.lr = 0.01});
    optim::ExponentialMovingAverage average(net->parameters(), 0.5);
    {
      train::Checkpointer saver(borrowed(group), {.folder = folder.file("run")});
      saver.attach("model", net);
      saver.attach("optimizer", optimizer);
      saver.attach("average", average);
      EXPECT_EQ(saver.begin(), 0);
      train_once(net, optimizer, 1);
      average.update();
      EXPECT_TRUE(saver.save(1));
      train_once(net, optimizer, 2);  // while the checkpoint is being written
      average.update();
      EXPECT_TRUE(saver.finish());
    }
    const auto expected = values_of(net), averages = values_in(average);
    for (const c10::Device next : {device, c10::Device(c10::kCPU)}) {
      Mlp restored = make_mlp();
      restored->to(next);
      optim::AdamW again(restored->parameters(), {.lr = 0.01});
      optim::ExponentialMovingAverage average_again(restored->parameters(), 0.5);
      train::Checkpointer loader(borrowed(group), {.folder = folder.file("run"), .resume = true});
      loader.attach("model", restored);
      loader.attach("optimizer", again);
      loader.attach("average", average_again);
      EXPECT_EQ(loader.begin(), 1);
      train_once(restored, again, 2);
      average_again.update();
      expect_close(values_of(restored), expected);
      expect_close(values_in(average_again), averages);
    }
  });
}

// The first save fails, and the second one, on a larger disk, works.
TEST(DeviceCheckpoint, on_a_full_disk_is_told_on_every_rank_and_training_goes_on) {
  if (::getuid() != 0) GTEST_SKIP() << "a small file system needs root";
  const FreshDirectory folder;
  harness::SmallDisk disk(folder.path(), "64k");
  testing::internal::CaptureStderr();
  std::vector<at::Tensor> expected;
  run_on_devices(2, [&](ProcessGroup& group, c10::Device device) {
    LargeRun run(device);
    train::Checkpointer saver(borrowed(group), {.folder = folder.file("run")});
    saver.attach("model", run.net);
    saver.attach("optimizer", run.optimizer);
    EXPECT_EQ(saver.begin(), 0);
    const std::size_t before = simulated::live_bytes(device.index());
    saver.save(1);
    EXPECT_FALSE(saver.finish()) << "rank " << group.rank();
    EXPECT_EQ(simulated::live_bytes(device.index()), before);
    group.barrier();
    if (group.rank() == 0) disk.resize("64m");
    group.barrier();
    train_once(run.net, run.optimizer, 1);
    saver.save(2);
    EXPECT_TRUE(saver.finish());
    if (group.rank() == 0) expected = values_of(run.net);
  });
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::HasSubstr("No space left on device"));
  run_on_devices(2, [&](ProcessGroup& group, c10::Device device) {
    LargeRun run(device);
    train::Checkpointer loader(borrowed(group), {.folder = folder.file("run"), .resume = true});
    loader.attach("model", run.net);
    loader.attach("optimizer", run.optimizer);
    EXPECT_EQ(loader.begin(), 2);
    expect_close(values_of(run.net), expected);
  });
}

// ---- divided optimizers

void expect_sharded_parity(int stage) {
  run_on_devices(2, [&](ProcessGroup& group, c10::Device device) {
    const auto train = [&](c10::Device where) {
      Mlp net = make_mlp();
      net->to(where);
      optim::AdamW optimizer(net->parameters(), {.lr = 0.01});
      auto model = fully_shard(net, borrowed(group), optimizer, {.stage = stage});
      for (int step = 0; step < 3; ++step) {
        const auto seed = static_cast<std::uint64_t>(10 * step + group.rank());
        const at::Tensor input = random_tensor({4, 8}, seed).to(where);
        optimizer.zero_grad();
        model->forward(input).square().mean().backward();
        EXPECT_GT(optim::clip_grad_norm(optimizer, 0.1), 0);
        optimizer.step();
      }
      return values_of(net);
    };
    expect_close(train(device), train(c10::kCPU));
  });
}

TEST(DeviceFullyShard, divides_the_optimizer_as_on_the_cpu) { expect_sharded_parity(1); }
TEST(DeviceFullyShard, divides_the_gradients_as_on_the_cpu) { expect_sharded_parity(2); }
TEST(DeviceFullyShard, divides_the_parameters_as_on_the_cpu) { expect_sharded_parity(3); }

// A run of stage 3 on devices that was saved goes on there and on the CPU, and one that was saved
// on the CPU on devices.
TEST(DeviceFullyShard, saves_and_restores_divided_parameters) {
  const FreshDirectory folder;
  run_on_devices(2, [&](ProcessGroup& group, c10::Device device) {
    struct Run {
      Run(ProcessGroup& group, c10::Device where, const std::string& folder, bool resume)
          : group(group),
            where(where),
            net(made_on(where)),
            optimizer(net->parameters()),
            model(fully_shard(net, borrowed(group), optimizer,
                              {.stage = where.is_cpu() ? 2 : 3, .unit_bytes = 256})) {
        checkpoints.emplace(borrowed(group),
                            train::CheckpointOptions{.folder = folder, .resume = resume});
        checkpoints->attach("model", net);
        checkpoints->attach("optimizer", optimizer);
      }
      static Mlp made_on(c10::Device device) {
        Mlp made = make_mlp();
        made->to(device);
        return made;
      }
      void step(int number) {
        const auto seed = static_cast<std::uint64_t>(10 * number + group.rank());
        optimizer.zero_grad();
        model->forward(random_tensor({4, 8}, seed).to(where)).square().mean().backward();
        optimizer.step();
      }

      ProcessGroup& group;
      const c10::Device where;
      Mlp net;
      optim::AdamW optimizer;
      DistributedDataParallel<torch::nn::SequentialImpl> model;
      std::optional<train::Checkpointer> checkpoints;
    };
    int number = 0;
    for (const c10::Device saves : {device, c10::Device(c10::kCPU)}) {
      const std::string place = folder.file("run" + std::to_string(number++));
      Run saved(group, saves, place, false);
      EXPECT_EQ(saved.checkpoints->begin(), 0);
      saved.step(1);
      EXPECT_TRUE(saved.checkpoints->save(1));
      saved.step(2);  // while the checkpoint is being written
      EXPECT_TRUE(saved.checkpoints->finish());
      saved.checkpoints.reset();  // another one may use the folder now
      const auto expected = values_of(saved.net);
      for (const c10::Device next : {device, c10::Device(c10::kCPU)}) {
        Run restored(group, next, place, true);
        restored.step(7);  // units are whole when the checkpoint is loaded
        EXPECT_EQ(restored.checkpoints->begin(), 1);
        restored.step(2);
        expect_close(values_of(restored.net), expected);
        group.barrier();
      }
    }
  });
}

// ---- tensor parallelism

TEST(DeviceTensorParallel, computes_as_on_the_cpu) {
  run_on_devices(2, [](ProcessGroup& group, c10::Device device) {
    const auto outcome = [&](c10::Device where) {
      auto [first, second] = made_with_seed(6, [&] {
        return std::pair(ColumnParallelLinear(torch::nn::LinearOptions(8, 16), borrowed(group)),
                         RowParallelLinear(torch::nn::LinearOptions(16, 4), borrowed(group)));
      });
      first->to(where);
      second->to(where);
      const at::Tensor input = random_tensor({5, 8}, 7).to(where).requires_grad_();
      const at::Tensor output = second->forward(torch::relu(first->forward(input)));
      output.square().sum().backward();
      std::vector<at::Tensor> all{output.detach().cpu(), input.grad().cpu()};
      for (const at::Tensor& one : first->parameters()) all.push_back(one.grad().cpu());
      for (const at::Tensor& one : second->parameters()) all.push_back(one.grad().cpu());
      return all;
    };
    expect_close(outcome(device), outcome(c10::kCPU));
  });
}

// ---- pipelines

TEST(DevicePipeline, computes_as_on_the_cpu) {
  for (const std::string name : {"gpipe", "1f1b", "interleaved-1f1b", "zero-bubble"}) {
    run_on_devices(2, [&](ProcessGroup& group, c10::Device device) {
      const auto outcome = [&](c10::Device where) {
        const auto schedule = pipeline_schedule(name, 2, 4, name == "interleaved-1f1b" ? 2 : 1);
        std::vector<Mlp> layers;
        std::vector<PipelineStage> stages;
        for (int stage = 0; stage < schedule.num_stages(); ++stage) {
          Mlp layer = made_with_seed(20 + static_cast<std::uint64_t>(stage), [] {
            return Mlp(torch::nn::Linear(6, 6), torch::nn::Tanh());
          });
          if (schedule.rank_of_stage[static_cast<std::size_t>(stage)] != group.rank()) continue;
          layer->to(where);
          layers.push_back(layer);
          stages.push_back(make_stage(stage, layer));
        }
        Pipeline pipeline(borrowed(group), schedule, stages);
        const at::Tensor batch = random_tensor({8, 6}, 30).to(where);
        const at::Tensor target = random_tensor({2, 6}, 31).to(where);
        const auto result = pipeline.step(
            pipeline.has_first_stage() ? split_micro_batches(batch, 4) : std::vector<Tensors>{},
            [&](const Tensors& outputs, int) { return torch::mse_loss(outputs[0], target); });
        Tensors all;
        for (const at::Tensor& loss : result.losses) all.push_back(loss.cpu());
        for (Mlp& layer : layers) {
          for (const at::Tensor& one : layer->parameters()) all.push_back(one.grad().cpu());
        }
        return all;
      };
      expect_close(outcome(device), outcome(c10::kCPU));
    });
  }
}

TEST(DevicePipeline, refuses_stages_on_two_devices) {
  run_on_devices(1, [](ProcessGroup& group, c10::Device device) {
    torch::nn::Linear first(4, 4), second(4, 4);
    second->to(device);
    expect_error(ErrorCode::kInvalid, {"parameters on cpu and on cuda:1", "to one device"}, [&] {
      Pipeline pipeline(borrowed(group), pipeline_schedule("interleaved-1f1b", 1, 2, 2),
                        {make_stage(0, first), make_stage(1, second)});
    });
  });
}

// ---- the choice of a device

TEST(DeviceChoice, is_the_local_ranks_device) {
  EXPECT_EQ(choose_device("cpu", 3), c10::Device(c10::kCPU));
  EXPECT_EQ(choose_device("cuda", 3), c10::Device(c10::kCUDA, 3));
  EXPECT_EQ(choose_device("cuda", 5), c10::Device(c10::kCUDA, 1)) << "two ranks on one device";
  EXPECT_EQ(choose_device("cuda:2", 0), c10::Device(c10::kCUDA, 2));
  expect_error(ErrorCode::kInvalid, {"device cuda:4: this process sees 4 CUDA devices"},
               [] { choose_device("cuda:4", 0); });
  expect_error(ErrorCode::kInvalid, {"unknown device 'gpu'; choose cpu, cuda or cuda:N"},
               [] { choose_device("gpu", 0); });
}

TEST(DeviceDropout, drops_the_elements_of_the_cpu) {
  const c10::Device device(c10::kCUDA, 1);
  seed_rank(9);
  const at::Tensor host = paceline::dropout(torch::ones({100}), 0.5, true);
  seed_rank(9);
  EXPECT_TRUE(torch::equal(paceline::dropout(torch::ones({100}, device), 0.5, true).cpu(), host));
}

}  // namespace
}  // namespace paceline
