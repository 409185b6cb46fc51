{
  "targets": [
    {
      "target_name": "weft",
      "sources": [
        "native/napi/addon.cc",
        "native/crypto/aead.cc",
        "native/crypto/mac.cc",
        "native/core/checksum.cc",
        "native/core/coalesce.cc",
        "native/core/fragment.cc",
        "native/core/icmp.cc",
        "native/core/peers.cc",
        "native/core/refusals.cc",
        "native/core/segment.cc",
        "native/core/session.cc",
        "native/walk/descriptors.cc",
        "native/engine.cc",
        "native/io/bpf.cc",
        "native/io/handover_state.cc",
        "native/io/echo.cc",
        "native/io/netlink.cc",
        "native/io/own_memory.cc",
        "native/io/path_probe.cc",
        "native/io/receiver.cc",
        "native/io/sender.cc",
        "native/io/steering.cc",
        "native/io/traffic_control.cc",
        "native/io/tun.cc",
        "native/io/tun_writer.cc",
        "native/io/udp.cc",
        "native/io/unix_socket.cc",
        "native/walk/loop.cc",
        "native/napi/bpf.cc",
        "native/napi/engine.cc",
        "native/napi/host.cc",
        "native/napi/layout.cc",
        "native/napi/lock.cc",
        "native/napi/netlink.cc",
        "native/napi/values.cc",
        "native/napi/watch.cc"
      ],
      "actions": [
        {
          "action_name": "kernel_way",
          "inputs": ["native/bpf/kernel_way.bpf.c", "native/bpf/build.mjs"],
          "outputs": ["<(INTERMEDIATE_DIR)/kernel_way_object.h"],
          "action": ["node", "native/bpf/build.mjs", "<(INTERMEDIATE_DIR)/kernel_way_object.h"]
        }
      ],
      "include_dirs": ["<!(node -p \"require('node-addon-api').include_dir\")", "<(INTERMEDIATE_DIR)"],
      "defines": ["_FILE_OFFSET_BITS=64", "_TIME_BITS=64", "NAPI_VERSION=8", "NODE_ADDON_API_DISABLE_CPP_EXCEPTIONS", "NODE_API_SWALLOW_UNTHROWABLE_EXCEPTIONS"],
      "cflags_cc!": ["-std=gnu++17", "-std=gnu++20", "-O3"],
      "cflags_cc": ["-std=c++20", "-O2", "-Wall", "-Wextra", "-fno-exceptions", "-Wno-psabi", "-fvisibility=hidden"],
      "cflags": ["-fno-omit-frame-pointer"]
    }
  ]
}
