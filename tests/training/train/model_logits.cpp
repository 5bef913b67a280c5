// model_logits gpt|bert|resnet|efficientnet WEIGHTS INPUT COPY NUMBER...: loads weights from Python
// into a model without dropout, writes them again to the file COPY, and prints the logits for the
// tensor "input" of the file INPUT, one line for each sample or token. The numbers are VOCABULARY
// CONTEXT LAYERS WIDTH HEADS of a transformer, the depth of a ResNet, or the variant of an
// EfficientNet. For tests/training/models/beside_python_models.py.

#include <cstdio>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "paceline/training/models/efficient_net.h"
#include "paceline/training/models/hugging_face.h"
#include "paceline/training/models/resnet.h"
#include "paceline/training/train/checkpoints/weights_file.h"

namespace {

using namespace paceline;

struct Files {
  std::string weights, input, copy;
};

template <class Model>
void print_logits(Model& model, const Files& files) {
  const torch::NoGradGuard no_grad;
  model->eval();
  const torch::Tensor logits =
      model->forward(read_weights(files.input).at("input")).flatten(0, -2).contiguous();
  for (std::int64_t row = 0; row < logits.size(0); ++row) {
    for (std::int64_t i = 0; i < logits.size(1); ++i)
      std::printf("%.9g ", logits[row].data_ptr<float>()[i]);
    std::puts("");
  }
}

template <class Model>
void run_transformer(Model model, const Files& files) {
  models::load_hugging_face(model, read_weights(files.weights));
  write_weights(files.copy, models::to_hugging_face(model));
  print_logits(model, files);
}

template <class Model>
void run_vision(Model model, const Files& files) {
  load_weights(*model, read_weights(files.weights));
  write_weights(files.copy, weights_of(*model));
  print_logits(model, files);
}

int run(const std::vector<std::string>& words) {
  if (words.size() < 5) {
    std::fputs("usage: model_logits gpt|bert|resnet|efficientnet WEIGHTS INPUT COPY NUMBER...\n",
               stderr);
    return 2;
  }
  const Files files{words[1], words[2], words[3]};
  const auto number = [&](std::size_t which) { return std::stoll(words.at(4 + which)); };
  if (words[0] == "gpt") {
    run_transformer(models::Gpt(models::GptOptions{.vocabulary = number(0),
                                                   .context = number(1),
                                                   .layers = number(2),
                                                   .width = number(3),
                                                   .heads = number(4)}),
                    files);
  } else if (words[0] == "bert") {
    run_transformer(models::Bert(models::BertOptions{.vocabulary = number(0),
                                                     .context = number(1),
                                                     .layers = number(2),
                                                     .width = number(3),
                                                     .heads = number(4),
                                                     .feed_forward = 4 * number(3)}),
                    files);
  } else if (words[0] == "resnet") {
    run_vision(models::ResNet(models::ResNetOptions{.depth = static_cast<int>(number(0))}), files);
  } else {
    run_vision(
        models::EfficientNet(models::EfficientNetOptions{.variant = static_cast<int>(number(0))}),
        files);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  return run({argv + 1, argv + argc});
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
