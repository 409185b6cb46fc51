{
  "targets": [
    {
      "target_name": "weft",
      "sources": [
        "native/addon.cc",
        "native/checksum.cc",
        "native/coalesce.cc",
        "native/egress.cc",
        "native/engine.cc",
        "native/icmp.cc",
        "native/ingress.cc",
        "native/notify.cc",
        "native/peers.cc",
        "native/segment.cc",
        "native/tun.cc",
        "native/udp.cc"
      ],
      "include_dirs": ["<!(node -p \"require('node-addon-api').include_dir\")"],
      "defines": ["NAPI_VERSION=8", "NODE_ADDON_API_DISABLE_CPP_EXCEPTIONS"],
      "cflags_cc!": ["-std=gnu++17", "-std=gnu++20", "-O3"],
      "cflags_cc": ["-std=c++20", "-O2", "-Wall", "-Wextra", "-fno-exceptions", "-fvisibility=hidden"],
      "cflags": ["-fno-omit-frame-pointer"]
    }
  ]
}
