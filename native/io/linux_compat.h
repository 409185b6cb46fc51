// linux_compat.h - kernel constants that the build machine's headers may lack, each with the Linux version that added
// it.
#pragma once

#include <linux/if_tun.h>
#include <netinet/in.h>
#include <netinet/udp.h>

#ifndef TUNSETSTEERINGEBPF  // Linux 4.16
#define TUNSETSTEERINGEBPF _IOR('T', 224, int)
#endif

#ifndef TUN_F_USO4  // Linux 6.2, commit 399e0827642f
#define TUN_F_USO4 0x20
#define TUN_F_USO6 0x40
#endif

#ifndef UDP_SEGMENT  // Linux 4.18
#define UDP_SEGMENT 103
#endif

#ifndef UDP_GRO  // Linux 5.0
#define UDP_GRO 104
#endif

#ifndef IPV6_AUTOFLOWLABEL  // Linux 3.17
#define IPV6_AUTOFLOWLABEL 70
#endif
