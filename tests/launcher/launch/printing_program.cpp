// Prints a line in the way that the first argument names, without flushing it, then makes the file
// that the second one names, and waits to be ended.

#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>

#include <unistd.h>

int main(int, char** argv) {
  const std::string way = argv[1];
  if (way == "C") std::printf("line of C\n");
  if (way == "C++") std::cout << "line of C++\n";
  if (way == "iostream") {
    std::ios::sync_with_stdio(false);
    std::cout << "line of iostream" << std::endl;  // keeps lines back on every terminal otherwise
  }
  std::ofstream(argv[2]) << "";
  for (;;) pause();
}
