// transformer_logits gpt|bert WEIGHTS VOCABULARY CONTEXT LAYERS WIDTH HEADS COPY: loads Hugging
// Face's weights into a model without dropout, writes them to the file COPY again, reads a line of
// tokens and prints the logits, a line a token. For beside_transformers.py.

#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "paceline/core/error.h"
#include "paceline/models/hugging_face.h"
#include "paceline/train/weights_file.h"

namespace {

using namespace paceline;

template <class Model>
void run(Model model, const std::vector<std::string>& words) {
  models::load_hugging_face(model, read_weights(words[1]));
  write_weights(words[7], models::to_hugging_face(model));
  std::vector<std::int64_t> tokens;
  for (std::int64_t token = 0; std::cin >> token;) tokens.push_back(token);
  const torch::NoGradGuard no_grad;
  model->eval();
  const torch::Tensor logits = model->forward(torch::tensor(tokens).unsqueeze(0))[0].contiguous();
  for (std::int64_t t = 0; t < logits.size(0); ++t) {
    for (std::int64_t i = 0; i < logits.size(1); ++i)
      std::printf("%.9g ", logits[t].data_ptr<float>()[i]);
    std::puts("");
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() != 8) {
    std::fputs(
        "usage: transformer_logits gpt|bert WEIGHTS VOCABULARY CONTEXT LAYERS WIDTH HEADS COPY\n",
        stderr);
    return 2;
  }
  const auto number = [&](std::size_t word) { return std::stoll(words[word]); };
  if (words[0] == "gpt") {
    run(models::Gpt(models::GptOptions{.vocabulary = number(2),
                                       .context = number(3),
                                       .layers = number(4),
                                       .width = number(5),
                                       .heads = number(6)}),
        words);
  } else {
    run(models::Bert(models::BertOptions{.vocabulary = number(2),
                                         .context = number(3),
                                         .layers = number(4),
                                         .width = number(5),
                                         .heads = number(6),
                                         .feed_forward = 4 * number(5)}),
        words);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
