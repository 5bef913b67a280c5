@0xd1f0c6b5a2e84973;

interface Calls {
  take @0 (bytes :Data) -> (bytes :Data);
}
