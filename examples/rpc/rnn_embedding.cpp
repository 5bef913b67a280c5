// A language model whose embedding is on another worker, as if the table were too large for the
// trainer. The trainer has the LSTM; one step of the optimizer updates both:
//
//   paceline run --nproc-per-node 2 rnn_embedding
//
// Without a launcher, the same model is trained in this process and prints the same losses.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <tuple>

#include <torch/torch.h>

#include "paceline/training/remote/distributed_optimizer.h"
#include "paceline/training/tensor/compute_settings.h"

namespace remote = paceline::remote;
namespace rpc = paceline::rpc;

constexpr std::int64_t kWords = 50, kWidth = 16, kHidden = 24;
constexpr remote::Adam kOptimizer{.lr = 0.01};

struct Table {  // how another worker creates the embedding
  static constexpr std::string_view kName = "table";
  struct Arguments {
    std::int64_t words = 0, width = 0;
    static auto fields(auto& m) { return std::tie(m.words, m.width); }
  };
  static torch::nn::Embedding make(const Arguments& arguments) {
    torch::manual_seed(1);
    return torch::nn::Embedding(arguments.words, arguments.width);
  }
};

// Predicts the next word of each sequence from its embedded words.
struct ReaderImpl : torch::nn::Module {
  ReaderImpl() {
    torch::manual_seed(2);
    lstm = register_module("lstm", torch::nn::LSTM(kWidth, kHidden));
    decoder = register_module("decoder", torch::nn::Linear(kHidden, kWords));
  }
  torch::Tensor forward(const torch::Tensor& embedded) {
    return decoder->forward(std::get<0>(lstm->forward(embedded)));
  }
  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear decoder{nullptr};
};
TORCH_MODULE(Reader);

void train(Reader reader, const std::function<torch::Tensor(const torch::Tensor& words)>& embed,
           const std::function<void(const torch::Tensor& loss)>& step) {
  torch::manual_seed(3);
  // Each word is the previous one plus three, so there is something to learn.
  const auto text = torch::arange(400, torch::kLong).mul(3).remainder(kWords);
  for (int i = 0; i < 30; ++i) {
    const auto starts = torch::randint(380, {8}, torch::kLong);
    const auto places = starts.unsqueeze(0) + torch::arange(12, torch::kLong).unsqueeze(1);
    const auto words = text.take(places), next = text.take(places + 1);
    const auto logits = reader->forward(embed(words));
    const auto loss =
        torch::nn::functional::cross_entropy(logits.reshape({-1, kWords}), next.reshape({-1}));
    loss.backward();
    step(loss);
    if (i % 5 == 4) std::printf("step %d: loss %.9f\n", i, loss.item<double>());
  }
}

void train_alone() {
  auto table = Table::make({kWords, kWidth});
  Reader reader;
  auto parameters = reader->parameters();
  parameters.push_back(table->weight);
  const auto optimizer = kOptimizer.make(parameters);
  train(
      reader, [&](const torch::Tensor& words) { return table->forward(words); },
      [&](const torch::Tensor&) { optimizer->step(), optimizer->zero_grad(); });
}

void train_remotely(rpc::Workers& workers) {
  const auto table = remote::create<Table>(workers, "worker1", {kWords, kWidth});
  Reader reader;
  remote::DistributedOptimizer optimizer(workers, {table}, kOptimizer, reader->parameters());
  train(
      reader, [&](const torch::Tensor& words) { return table->forward(words); },
      [&](const torch::Tensor& loss) { optimizer.step(loss); });
}

int main() {
  paceline::set_thread_count(1);
  const char* const rank = std::getenv("RANK");  // set by `paceline run`
  if (rank == nullptr) return train_alone(), 0;
  if (std::string_view(rank) == "0") return train_remotely(*rpc::join("trainer")), 0;
  const auto serve = [](rpc::Workers& self) {
    remote::serve_modules(self);
    remote::serve<Table>(self);
  };
  rpc::join("worker" + std::string(rank), {.prepare = serve})->wait_until_gone("trainer");
}
