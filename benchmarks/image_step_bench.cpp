// A training step on random images, data parallel over the ranks that the launcher starts:
// milliseconds and memory, for step_beside_python.py, which runs it in turns with Python.
//
//   paceline run --nproc-per-node 2 image_step_bench --model resnet18 --image-size 224 --batch 8
//
// With --parts the program prints instead a table of the gain from channels_last, the fused
// optimizer, batch norms folded into convolutions, and activations in place. Variants take turns,
// round by round, in one process.
//
//   image_step_bench --model efficientnet_b0 --image-size 64 --batch 16 --parts

#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <torch/torch.h>

#include "paceline/engine/collectives/group/init_process_group.h"
#include "paceline/engine/core/check.h"
#include "paceline/training/models/cnn.h"
#include "paceline/training/models/efficient_net.h"
#include "paceline/training/models/layers.h"
#include "paceline/training/models/resnet.h"
#include "paceline/training/optim/optimizer_core.h"
#include "paceline/training/optim/rules/update_rules.h"
#include "paceline/training/parallel/distributed_data_parallel.h"
#include "paceline/training/tensor/tensor_memory.h"
#include "paceline/training/train/libtorch_facts.h"
#include "paceline/training/train/training_process.h"

#include "benchmarks/own_usage.h"
#include "benchmarks/spread.h"

namespace paceline::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string model = "cnn";
  std::int64_t image_size = 32, batch = 32, classes = 10;
  int steps = 20, rounds = 5;
  bool parts = false;
};

// Any of the models as one type, as in train_image.
struct Network : torch::nn::Module {
  Network(const Options& options, const models::Layers& layers) {
    if (options.model == "cnn") {
      const models::CnnOptions shape{3, options.image_size, options.image_size, options.classes};
      any = torch::nn::AnyModule(models::Cnn(shape, layers));
    } else if (options.model == "resnet18") {
      const models::ResNetOptions shape{.classes = options.classes,
                                        .small_images = options.image_size <= 40};
      any = torch::nn::AnyModule(models::ResNet(shape, layers));
    } else {
      any = torch::nn::AnyModule(
          models::EfficientNet(models::EfficientNetOptions{.classes = options.classes}, layers));
    }
    register_module("any", any.ptr());
  }
  at::Tensor forward(const at::Tensor& images) { return any.forward(images); }

  torch::nn::AnyModule any;
};

void lay_out(torch::nn::Module& module, at::MemoryFormat format) {
  for (auto& parameter : module.parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(format));
  }
}

double ms_of(const std::function<void()>& body, int count) {
  const auto begin = Clock::now();
  for (int i = 0; i < count; ++i) body();
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count() / count;
}

// --- The step ---

void take_steps(const Options& options) {
  const auto group = init_process_group();
  const SymmetricTensors symmetric_tensors(*group);
  const auto network = std::make_shared<Network>(options, models::Layers{});
  lay_out(*network, at::MemoryFormat::ChannelsLast);
  DistributedDataParallel<Network> model(network, group, {});
  optim::Adam optimizer(model->parameters(), optim::AdamOptions{.lr = 1e-5});
  core_of(optimizer).shard(group);
  const at::Tensor images = at::randn({options.batch, 3, options.image_size, options.image_size})
                                .contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor labels = at::randint(options.classes, {options.batch}, at::kLong);
  const auto step = [&] {
    torch::nn::functional::cross_entropy(model.forward(images), labels).backward();
    optimizer.step();
    optimizer.zero_grad();
  };
  ms_of(step, options.steps);  // warms up
  group->barrier();
  const double ms = ms_of(step, options.steps);
  group->barrier();
  const double memory = own_pss_mb();
  group->barrier();
  if (group->rank() == 0) fmt::print("{{\"ms\": {:.4f}, \"memory_mb\": {:.1f}}}\n", ms, memory);
}

// --- The gain of the parts ---

struct Part {
  std::string name;
  std::size_t against;  // the part to compare with
  std::function<void()> body;
  std::vector<double> ms = {};
};

struct NoNorm : torch::nn::Module {
  at::Tensor forward(const at::Tensor& features) { return features; }
};

// A network without batch norms that computes the same in evaluation: each norm becomes a factor
// and an offset of the convolution before it.
std::shared_ptr<Network> without_norms(const Options& options, const Network& network) {
  models::Layers layers;
  layers.norm = [](std::int64_t) { return torch::nn::AnyModule(std::make_shared<NoNorm>()); };
  auto folded = std::make_shared<Network>(options, layers);
  const auto convolutions_of = [](const torch::nn::Module& module) {
    std::vector<torch::nn::Conv2dImpl*> convolutions;
    for (const auto& part : module.modules()) {
      if (auto* convolution = part->as<torch::nn::Conv2dImpl>())
        convolutions.push_back(convolution);
    }
    return convolutions;
  };
  const auto targets = convolutions_of(*folded);
  std::size_t number = 0;  // number of convolutions so far
  for (const auto& part : network.modules()) {
    if (const auto* convolution = part->as<torch::nn::Conv2dImpl>()) {
      targets[number]->weight.set_data(convolution->weight.detach().clone());
      targets[number]->bias =
          convolution->bias.defined() ? convolution->bias.detach() : at::Tensor();
      ++number;
    } else if (const auto* norm = part->as<torch::nn::BatchNorm2dImpl>()) {
      torch::nn::Conv2dImpl& target = *targets[number - 1];
      const at::Tensor factor =
          norm->weight.detach() / (norm->running_var + norm->options.eps()).sqrt();
      target.weight.set_data(target.weight * factor.view({-1, 1, 1, 1}));
      target.bias = norm->bias.detach() - norm->running_mean * factor;
    } else if (const auto* linear = part->as<torch::nn::LinearImpl>()) {
      for (const auto& other : folded->modules()) {
        if (auto* same = other->as<torch::nn::LinearImpl>();
            same != nullptr && same->weight.sizes() == linear->weight.sizes()) {
          same->weight.set_data(linear->weight.detach());
          same->bias.set_data(linear->bias.detach());
        }
      }
    }
  }
  lay_out(*folded, at::MemoryFormat::ChannelsLast);
  folded->eval();
  return folded;
}

// The sizes of the batch norms' outputs for these images, which are the inputs of activations.
std::vector<std::vector<std::int64_t>> sizes_of_activations(const Options& options,
                                                            const at::Tensor& images) {
  struct Noting : torch::nn::Module {
    explicit Noting(std::vector<std::vector<std::int64_t>>& all) : sizes(all) {}
    at::Tensor forward(const at::Tensor& features) {
      sizes.push_back(features.sizes().vec());
      return features;
    }
    std::vector<std::vector<std::int64_t>>& sizes;
  };
  std::vector<std::vector<std::int64_t>> sizes;
  models::Layers layers;
  layers.norm = [&](std::int64_t) { return torch::nn::AnyModule(std::make_shared<Noting>(sizes)); };
  Network(options, layers).forward(images);
  return sizes;
}

std::shared_ptr<Network> copy_of(const Options& options, const Network& network,
                                 at::MemoryFormat format) {
  auto copy = std::make_shared<Network>(options, models::Layers{});
  const at::NoGradGuard no_grad;
  const auto take = [](const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
    for (std::size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
  };
  take(network.parameters(), copy->parameters());
  take(network.buffers(), copy->buffers());
  lay_out(*copy, format);
  return copy;
}

// Networks with the same weights, and the variants that are measured.
class Parts {
 public:
  explicit Parts(const Options& options) : options_(options) {
    add("training step: channels_last, fused Adam", 0,
        [this] { train(*last_, last_adam_, images_); });
    add("... contiguous", 0, [this] { train(*plain_, plain_adam_, contiguous_); });
    add("... LibTorch's Adam", 0, [this] { train(*third_, torch_adam_, images_); });
    // A few training steps, so that the norms have statistics.
    for (int i = 0; i < 3; ++i) parts_.front().body();
    add_evaluation();
  }

  void measure() {
    for (int round = -1; round < options_.rounds; ++round) {
      for (Part& part : parts_) {
        const double ms = ms_of(part.body, options_.steps);
        if (round >= 0) part.ms.push_back(ms);
      }
    }
  }

  void print() const {
    fmt::print("{}, batch {} of 3x{}x{}, {} threads, {} rounds of {} steps\n\n", options_.model,
               options_.batch, options_.image_size, options_.image_size, at::get_num_threads(),
               options_.rounds, options_.steps);
    fmt::print("| part | ms, median [min, max] | ratio |\n|---|---|---|\n");
    for (const Part& part : parts_) {
      const Part& against = parts_[part.against];
      std::vector<double> ratios;
      for (std::size_t round = 0; round < part.ms.size(); ++round)
        ratios.push_back(part.ms[round] / against.ms[round]);
      fmt::print("| {} | {} | {} |\n", part.name, with_spread(part.ms),
                 &part == &against ? "1" : with_spread(ratios));
    }
  }

 private:
  void add(const std::string& name, std::size_t against, const std::function<void()>& body) {
    parts_.push_back({name, against, body});
  }

  template <class Adam>
  void train(Network& network, Adam& adam, const at::Tensor& input) {
    torch::nn::functional::cross_entropy(network.forward(input), labels_).backward();
    adam.step();
    adam.zero_grad();
  }

  static void evaluate(Network& network, const at::Tensor& input) {
    const at::NoGradGuard no_grad;
    network.forward(input);
  }

  void add_evaluation() {
    const at::NoGradGuard no_grad;
    tested_ = copy_of(options_, *last_, at::MemoryFormat::ChannelsLast);
    tested_plain_ = copy_of(options_, *last_, at::MemoryFormat::Contiguous);
    tested_->eval();
    tested_plain_->eval();
    const std::size_t first = parts_.size();
    add("evaluation: channels_last", first, [this] { evaluate(*tested_, images_); });
    add("... contiguous", first, [this] { evaluate(*tested_plain_, contiguous_); });
    for (const auto& sizes : sizes_of_activations(options_, images_))
      maps_.push_back(at::randn(sizes).contiguous(at::MemoryFormat::ChannelsLast));
    if (maps_.empty()) return;  // the model has no norms
    folded_ = without_norms(options_, *tested_);
    check(folded_->forward(images_).allclose(tested_->forward(images_), 1e-3, 1e-3),
          "the model without norms computes something else");
    add("... batch norms folded into convolutions", first, [this] { evaluate(*folded_, images_); });
    add("activations alone, in place", parts_.size(), [this] {
      for (at::Tensor& map : maps_) at::relu_(map);
    });
    add("... not in place", parts_.size() - 1, [this] {
      for (const at::Tensor& map : maps_) at::relu(map);
    });
  }

  const Options options_;
  const at::Tensor contiguous_ =
      at::randn({options_.batch, 3, options_.image_size, options_.image_size});
  const at::Tensor images_ = contiguous_.contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor labels_ = at::randint(options_.classes, {options_.batch}, at::kLong);
  const std::shared_ptr<Network> last_ =
      copy_of(options_, Network(options_, models::Layers{}), at::MemoryFormat::ChannelsLast);
  const std::shared_ptr<Network> plain_ = copy_of(options_, *last_, at::MemoryFormat::Contiguous);
  const std::shared_ptr<Network> third_ = copy_of(options_, *last_, at::MemoryFormat::ChannelsLast);
  optim::Adam last_adam_{last_->parameters(), optim::AdamOptions{.lr = 1e-5}};
  optim::Adam plain_adam_{plain_->parameters(), optim::AdamOptions{.lr = 1e-5}};
  torch::optim::Adam torch_adam_{third_->parameters(), torch::optim::AdamOptions(1e-5)};
  std::shared_ptr<Network> tested_, tested_plain_, folded_;
  std::vector<at::Tensor> maps_;  // feature maps for the activations
  std::vector<Part> parts_;
};

}  // namespace
}  // namespace paceline::benchmarks

int main(int argc, char** argv) {
  paceline::benchmarks::Options options;
  CLI::App app("a training step on random images");
  app.add_option("--model", options.model)
      ->check(CLI::IsMember({"cnn", "resnet18", "efficientnet_b0"}));
  app.add_option("--image-size", options.image_size)->check(CLI::Range(8, 1024));
  app.add_option("--batch", options.batch, "images of a rank")->check(CLI::Range(1, 4096));
  app.add_option("--classes", options.classes)->check(CLI::Range(1, 100000));
  app.add_option("--steps", options.steps, "after as many to warm up")
      ->check(CLI::Range(1, 100000));
  app.add_option("--rounds", options.rounds, "of --parts")->check(CLI::Range(1, 1000));
  app.add_flag("--parts", options.parts, "what each part brings, as a table, on one rank");
  CLI11_PARSE(app, argc, argv);
  try {
    paceline::train::keep_large_blocks();
    if (options.parts) {
      paceline::benchmarks::Parts parts(options);
      parts.measure();
      parts.print();
    } else {
      paceline::benchmarks::take_steps(options);
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "image_step_bench: {}\n", error.what());
    return 1;
  }
}
