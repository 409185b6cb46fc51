// tencent-vpc.ts - the backend that writes its routes into route tables of Tencent Cloud's VPC.

import type { Backend, BackendParts } from '../contract.ts'
import { createFabricBackend } from './fabric.ts'
import { TencentPublisher } from './fabric/tencent-publisher.ts'

export const createTencentVpcBackend = (parts: BackendParts<'tencent-vpc'>): Backend =>
  createFabricBackend(
    'tencent-vpc',
    parts,
    (place) => new TencentPublisher(parts.settings, parts.settings.routeTables, place),
  )
