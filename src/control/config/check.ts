// check.ts - checks a network configuration as weftd does at its start.

import { WeftError } from '../../base/errors.ts'
import type { Log } from '../../base/log.ts'
import { checkTemplates } from '../../path/backends/fabric/template.ts'
import { isIpv4Alone, kindOf, remedyFor } from '../../path/catalog.ts'
import { knownType, readSettings } from './backend-options.ts'
import { carryIpv4Alone, parseNetworkConfig, requireFamily, type NetworkConfig } from './network-config.ts'

/**
 * Parses a network configuration, and checks it as weftd does at its start. Throws WeftError CONFIG if no weftd can
 * start with the configuration. `areGiven` is true if a controller assigns the subnets.
 */
export function checkedConfig(text: string, log: Pick<Log, 'warn'>, areGiven = false): NetworkConfig {
  const config = parseNetworkConfig(text, { areGiven })
  requireFamily(config)
  if (config.backendType === '') throw new WeftError('CONFIG', 'Backend has no Type', { remedy: remedyFor() })
  checkBackend(config, log)
  return config
}

/**
 * Checks the type and the options of a configuration's `Backend` object, and that the backend carries at least one
 * family of the network. Warns of a family that the backend does not carry. Throws WeftError CONFIG.
 */
function checkBackend(config: NetworkConfig, log: Pick<Log, 'warn'>): void {
  const type = knownType(config.backendType)
  const settings = readSettings(type, config.backend)
  if (kindOf(type)?.hasTemplates) checkTemplates(settings as Parameters<typeof checkTemplates>[0])
  if (isIpv4Alone(type)) carryIpv4Alone(`the ${type} backend`, config, log)
}
