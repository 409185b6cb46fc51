// as-ipv6.ts - translates IPv4 rules, tables, addresses and networks of a test to IPv6.

const prefixOf = ([a, b, c]: readonly string[]): string =>
  a !== '10' ? `2001:db8:${a}:${c}` : c === '0' ? `fd00:${b}` : `fd00:${b}:0:${c}`

/**
 * `10.5.1.0/24` becomes `fd00:5:0:1::/64`, and `10.5.1.2` becomes `fd00:5:0:1::2`. A network outside 10.0.0.0/8 becomes one in
 * 2001:db8::/32.
 */
export const asIpv6 = (text: string): string =>
  text
    .replaceAll('224.0.0.0/4', 'ff00::/8')
    .replaceAll(
      /(\d+)\.(\d+)\.(\d+)\.0\/(16|24)/g,
      (_, a, b, c, length) => `${prefixOf([a, b, c])}::/${length === '16' ? 48 : 64}`,
    )
    .replaceAll(/(\d+)\.(\d+)\.(\d+)\.([1-9]\d*)/g, (_, a, b, c, d) => `${prefixOf([a, b, c])}::${d}`)
    .replaceAll('flannel-ipv4', 'flannel-ipv6')
    .replaceAll(/\bip (?=flannel|[sd]addr)/g, 'ip6 ')
    .replaceAll(/\biptables/g, 'ip6tables')
